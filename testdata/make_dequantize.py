"""Makes testdata/dequantize and testdata/quantize: stored groups of weights and their values.

Oracles: `gguf.quants.dequantize` and `quantize` of the Python package gguf. Each file of the
first folder holds the stored bytes of `NUM_GROUPS` random groups, then their weights as
little-endian f32; each of the second holds weights, then the stored bytes they are quantised to.
Run from the repository root:

    pip install gguf numpy && python testdata/make_dequantize.py
"""

from pathlib import Path

import gguf
import numpy as np

# Type name -> byte offsets of its f16 fields, so that scales can be made sane numbers.
HALF_FIELDS = {
    "F32": [],
    "F16": [],
    "BF16": [],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
NUM_GROUPS = 3


def make_quantized() -> None:
    out = Path("testdata/quantize")
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(21)
    rows = (random.standard_normal((12, 32)) * 10.0 ** random.integers(-6, 4, (12, 1))).astype("<f4")
    rows[0] = 0.0
    # Codes of 8 bits that end in exactly a half, of both signs.
    rows[1] = np.append(np.arange(-15, 16) + 0.5, 127.0)
    # The same for 4 bits, with the largest magnitude twice and of both signs.
    rows[2] = np.append(np.arange(-15, 15) * 0.25, [4.0, -4.0])
    rows[3] = -rows[2]
    # Subnormal scales.
    rows[4] = rows[5] * np.float32(1e-6) / abs(rows[5]).max()
    for name in ("Q8_0", "Q4_0"):
        stored = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[name])
        (out / f"{name}.bin").write_bytes(rows.tobytes() + stored.tobytes())


def make_dequantized() -> None:
    out = Path("testdata/dequantize")
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(20)
    for name, half_fields in HALF_FIELDS.items():
        kind = gguf.GGMLQuantizationType[name]
        group_size, group_bytes = gguf.GGML_QUANT_SIZES[kind]
        if group_size == 1:
            # Every kind of finite number: normal, subnormal, both zeros.
            stored = (random.standard_normal(64) * 10.0 ** random.integers(-8, 4, 64)).astype("<f4")
            stored[:2] = [0.0, -0.0]
            if name == "F16":
                stored = np.clip(stored, -60000, 60000).astype("<f2")
            rows = stored.view(np.uint8).reshape(1, -1)
            if name == "BF16":
                rows = stored.view("<u2")[1::2].copy().view(np.uint8).reshape(1, -1)
        else:
            rows = random.integers(0, 256, (NUM_GROUPS, group_bytes), dtype=np.uint8)
            for offset in half_fields:
                scales = (random.standard_normal(NUM_GROUPS) * 0.05).astype("<f2")
                # One subnormal scale per field.
                scales[-1] = np.float16(3e-6)
                rows[:, offset : offset + 2] = scales.view(np.uint8).reshape(NUM_GROUPS, 2)
        source = rows
        if name in ("F32", "F16"):
            source = rows.view("<f4" if name == "F32" else "<f2")
        weights = gguf.quants.dequantize(source, kind).astype("<f4")
        (out / f"{name}.bin").write_bytes(rows.tobytes() + weights.tobytes())


make_dequantized()
make_quantized()
