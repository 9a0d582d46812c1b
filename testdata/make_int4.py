"""Makes testdata/int4: four-bit weights in the columns of GPTQ and AWQ, and what they stand for.

Each file NAME_GROUPSIZE.bin holds, one after the other: words of codes, words of zero points, f16
scales, group indices (32 bits), and the weights as f32, `[out_features, in_features]`. Packing
follows `QuantLinear.pack` of AutoGPTQ and `WQLinear_GEMM.from_linear` of AutoAWQ, one code after
the other. Run from the repository root:

    pip install numpy && python testdata/make_int4.py
"""

from pathlib import Path

import numpy as np

OUT_FEATURES, IN_FEATURES = 24, 128
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack(values: np.ndarray, order: list[int]) -> np.ndarray:
    """Packs eight neighbours of each row to a word, the one that `order` names first lowest."""
    words = np.zeros((values.shape[0], values.shape[1] // 8), dtype="<u4")
    for word in range(words.shape[1]):
        for place, neighbour in enumerate(order):
            code = values[:, word * 8 + neighbour].astype("<u4") & 15
            words[:, word] |= code << np.uint32(4 * place)
    return words


def pack_columns(name: str, codes: np.ndarray, zeros: np.ndarray) -> tuple[bytes, bytes]:
    """Packs codes `[in, out]` and zero points `[groups, out]`."""
    if name == "awq":
        return pack(codes, AWQ_ORDER).tobytes(), pack(zeros, AWQ_ORDER).tobytes()
    stored = zeros - 1 if name == "gptq" else zeros
    in_order = list(range(8))
    return pack(codes.T, in_order).T.tobytes(), pack(stored, in_order).tobytes()


def main() -> None:
    out = Path("testdata/int4")
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(23)
    for name in ("gptq", "gptq_v2", "awq"):
        for group_size in (32, 64, 128):
            num_groups = IN_FEATURES // group_size
            codes = random.integers(0, 16, (IN_FEATURES, OUT_FEATURES))
            zeros = random.integers(0, 16, (num_groups, OUT_FEATURES))
            # The edges: one is stored as zero, zero as the bits of minus one.
            zeros[0, :3] = [0, 1, 15]
            scales = (random.standard_normal((num_groups, OUT_FEATURES)) * 0.05).astype("<f2")
            group = np.arange(IN_FEATURES, dtype="<u4") // group_size
            weights = scales[group].astype("<f4") * (codes - zeros[group]).astype("<f4")
            words = pack_columns(name, codes, zeros)
            fields = [*words, scales.tobytes(), group.tobytes(), weights.T.tobytes()]
            (out / f"{name}_{group_size}.bin").write_bytes(b"".join(fields))


main()
