"""Makes testdata/dequantize and testdata/quantize: stored groups of weights and their values.

Oracles: `gguf.quants.dequantize` and `quantize` of the Python package gguf. Each file of the
first folder holds the stored bytes of `NUM_GROUPS` random groups, then their weights as
little-endian f32 (and `codebooks.txt` digests of more); each of the second holds weights, then the stored bytes they are quantised to.
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
    "IQ1_S": [0],
    "IQ1_M": [],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "MXFP4": [],
}
# Types with a codebook that random groups, if they are few, do not cover.
CODEBOOKS = ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
NUM_CODEBOOK_GROUPS = 1024
NUM_GROUPS = 3


def make_int4() -> None:
    """Writes the fixture of a type that gguf does not have: 4 bits, scale and minimum in f32."""
    random = np.random.default_rng(22)
    scales = (random.standard_normal((NUM_GROUPS, 2)) * 0.05).astype("<f4")
    packed = random.integers(0, 256, (NUM_GROUPS, 16), dtype=np.uint8)
    codes = np.concatenate([packed & 15, packed >> 4], axis=1)
    weights = scales[:, :1] * codes.astype("<f4") + scales[:, 1:]
    rows = np.concatenate([scales.view(np.uint8), packed], axis=1)
    Path("testdata/dequantize/INT4.bin").write_bytes(rows.tobytes() + weights.tobytes())


def make_codebook_digests() -> None:
    """Writes a digest of the weights of many groups, which are drawn as the Rust test does."""
    lines = []
    for name in CODEBOOKS:
        kind = gguf.GGMLQuantizationType[name]
        _, group_bytes = gguf.GGML_QUANT_SIZES[kind]
        state, drawn = 1, bytearray()
        for _ in range(NUM_CODEBOOK_GROUPS * group_bytes):
            state = (state * 1664525 + 1013904223) % 2**32
            drawn.append(state >> 24)
        rows = np.frombuffer(drawn, np.uint8).reshape(-1, group_bytes).copy()
        rows[:, :2] = np.array([1.0], "<f2").view(np.uint8)
        digest = 0xCBF29CE484222325
        for bits in gguf.quants.dequantize(rows, kind).astype("<f4").view("<u4").ravel().tolist():
            digest = ((digest ^ bits) * 0x100000001B3) % 2**64
        lines.append(f"{name} {digest:016x}\n")
    Path("testdata/dequantize/codebooks.txt").write_text("".join(lines))


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
            if name == "IQ1_M":
                # An f16 in the upper nibbles of four words.
                for i, scale in enumerate(np.array([0.05, -0.03, 3e-6], "<f2").view("<u2")):
                    words = rows[i, 48:].view("<u2")
                    digits = (int(scale) >> np.arange(0, 16, 4)) & 15
                    words[:] = (words & 0x0FFF) | (digits << 12).astype("<u2")
            if name == "MXFP4":
                rows[:, 0] = [0, 1, 121]
        source = rows
        if name in ("F32", "F16"):
            source = rows.view("<f4" if name == "F32" else "<f2")
        weights = gguf.quants.dequantize(source, kind).astype("<f4")
        (out / f"{name}.bin").write_bytes(rows.tobytes() + weights.tobytes())


make_dequantized()
make_int4()
make_codebook_digests()
make_quantized()
