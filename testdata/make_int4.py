"""Makes testdata/int4: four-bit weights in the columns of GPTQ and AWQ, and what they stand for.

Each file NAME_GROUPSIZE.bin holds, one after the other: words of codes, words of zero points, f16
scales, group indices (32 bits), and the weights as f32, `[out_features, in_features]`. Packing
follows `QuantLinear.pack` of AutoGPTQ and `WQLinear_GEMM.from_linear` of AutoAWQ, one code after
the other.

Makes testdata/tiny-int4 too: a tiny Qwen2 in each of the two, as a folder of Hugging Face. Oracle:
transformers, float32, eager attention, with the weights that the codes stand for. Run from the
repository root:

    pip install torch transformers gguf numpy && python testdata/make_int4.py
"""

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from tiny_model import NearTie, golden, save_folder, seed_weights
from transformers import Qwen2Config, Qwen2ForCausalLM

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


def unpack_columns(name: str, words: np.ndarray) -> np.ndarray:
    """Returns the zero points that words of them hold, as the formats' own programs read them."""
    order = AWQ_ORDER if name == "awq" else list(range(8))
    zeros = np.zeros((words.shape[0], words.shape[1] * 8), dtype="<i4")
    for place, neighbour in enumerate(order):
        zeros[:, neighbour::8] = (words >> np.uint32(4 * place)) & 15
    return (zeros + 1) & 15 if name == "gptq" else zeros


def make_columns() -> None:
    out = Path("testdata/int4")
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(23)
    for name, group_sizes in {"gptq": [32, 64, 128], "gptq_v2": [64], "awq": [32, 128]}.items():
        for group_size in group_sizes:
            num_groups = IN_FEATURES // group_size
            codes = random.integers(0, 16, (IN_FEATURES, OUT_FEATURES))
            zeros = random.integers(0, 16, (num_groups, OUT_FEATURES))
            # The edges: one is stored as zero, zero as the bits of minus one.
            zeros[0, :3] = [0, 1, 15]
            scales = (random.standard_normal((num_groups, OUT_FEATURES)) * 0.05).astype("<f2")
            group = np.arange(IN_FEATURES, dtype="<u4") // group_size
            weights = scales[group].astype("<f4") * (codes - zeros[group]).astype("<f4")
            words = pack_columns(name, codes, zeros)
            assert (unpack_columns(name, np.frombuffer(words[1], "<u4").reshape(num_groups, -1)) == zeros).all()
            fields = [*words, scales.tobytes(), group.tobytes(), weights.T.tobytes()]
            (out / f"{name}_{group_size}.bin").write_bytes(b"".join(fields))


def quantize(name: str, weights: np.ndarray, group_size: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the tensors of a matrix `[out, in]`, and the weights that they stand for."""
    columns = weights.T.astype("<f4")
    groups = columns.reshape(-1, group_size, columns.shape[1])
    low, high = groups.min(axis=1).clip(max=0), groups.max(axis=1).clip(min=0)
    scales = ((high - low) / 15).astype("<f2")
    zeros = np.rint(-low / scales.astype("<f4")).clip(0, 15).astype("<i4")
    group = np.arange(columns.shape[0], dtype="<i4") // group_size
    wide = scales.astype("<f4")[group]
    codes = (np.rint(columns / wide) + zeros[group]).clip(0, 15).astype("<i4")
    packed_codes, packed_zeros = pack_columns(name, codes, zeros)
    in_features, out_features = columns.shape
    shape = (in_features, out_features // 8) if name == "awq" else (in_features // 8, out_features)
    tensors = {
        "qweight": np.frombuffer(packed_codes, "<i4").reshape(shape),
        "qzeros": np.frombuffer(packed_zeros, "<i4").reshape(len(scales), -1),
        "scales": scales,
    }
    if name == "gptq":
        # As AutoGPTQ writes them, biases included that the model does not have.
        tensors["g_idx"] = group
        tensors["bias"] = np.zeros(out_features, "<f2")
    return tensors, (wide * (codes - zeros[group])).T


@torch.no_grad()
def make_model(name: str, group_size: int) -> None:
    config = Qwen2Config(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = Qwen2ForCausalLM(config).float().eval()
    folder = Path("testdata/tiny-int4") / name
    for seed in range(100):
        seed_weights(model, seed)
        # A copy, since saving in half precision rounds what is no weight too.
        save_folder(folder, deepcopy(model))
        tensors = load_file(folder / "model.safetensors")
        for module_name, module in model.named_modules():
            if not isinstance(module, torch.nn.Linear) or module_name == "lm_head":
                continue
            packed, weights = quantize(name, module.weight.numpy(), group_size)
            module.weight.copy_(torch.from_numpy(weights.copy()))
            del tensors[f"{module_name}.weight"]
            for end, tensor in packed.items():
                tensors.setdefault(f"{module_name}.{end}", tensor)
        try:
            logits = golden(model, [1, 17, 33], seed)
        except NearTie:
            continue
        save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "model.safetensors")
        (folder / "logits.golden").write_bytes(logits)
        settings = json.loads((folder / "config.json").read_text())
        common = {"bits": 4, "group_size": group_size, "quant_method": name}
        own = {"version": "gemm", "zero_point": True, "modules_to_not_convert": None}
        if name == "gptq":
            own = {"desc_act": False, "sym": False, "damp_percent": 0.01, "true_sequential": True}
        settings["quantization_config"] = common | own
        (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        return
    raise NearTie


make_columns()
make_model("awq", 32)
make_model("gptq", 64)
