"""Makes testdata/tiny-safetensors: seeded models as folders of Hugging Face, and their logits.

Oracle: the family's class of transformers, float32, eager attention, with the weights as stored.
One of them is also written as a GGUF file, one as several files with an index. Run from the
repository root:

    pip install torch transformers gguf numpy && python testdata/make_tiny_safetensors.py
"""

from pathlib import Path

import gguf
import torch
from tiny_model import (
    LAYER_NAMES,
    add_dimensions,
    gguf_tensors,
    save_folder,
    seeded_golden,
    write_gguf,
)
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

OUT = Path("testdata/tiny-safetensors")
WINDOW = 24
# Around the edges of blocks, of the window and of the original context; the last spans many chunks.
PROMPT_LENGTHS = [1, 16, 17, 25, 33, 100]
SIZES = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    attn_implementation="eager",
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
LINEAR_ROPE = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
ONE_LAYER = SIZES | dict(num_hidden_layers=1)
QWEN2_SIZES = {key: value for key, value in ONE_LAYER.items() if key != "head_dim"}
# Of three layers, the second sees all tokens.
GEMMA3_SIZES = SIZES | dict(num_hidden_layers=3, num_key_value_heads=1)
GEMMA3_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA3_ROPE = dict(
    full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
    sliding_attention=dict(rope_type="default", rope_theta=10000.0),
)
# Name -> model, stored type, and what norms are centred on.
MODELS = {
    "llama3": (
        LlamaForCausalLM(
            LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE)
        ),
        torch.bfloat16,
        1.0,
    ),
    "llama-linear": (
        LlamaForCausalLM(
            LlamaConfig(**ONE_LAYER, tie_word_embeddings=False, rope_parameters=LINEAR_ROPE)
        ),
        torch.float32,
        1.0,
    ),
    "mistral": (
        MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)),
        torch.float16,
        1.0,
    ),
    "qwen2": (
        Qwen2ForCausalLM(Qwen2Config(**QWEN2_SIZES | dict(hidden_size=64))),
        torch.float16,
        1.0,
    ),
    "gemma3": (
        Gemma3ForCausalLM(
            Gemma3TextConfig(
                **GEMMA3_SIZES,
                query_pre_attn_scalar=16,
                sliding_window=WINDOW,
                layer_types=GEMMA3_LAYERS,
                rope_parameters=GEMMA3_ROPE,
            )
        ),
        torch.float16,
        0.0,
    ),
}
GEMMA3_NAMES = LAYER_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gemma3(folder: Path, config: Gemma3TextConfig) -> None:
    """Writes the GGUF file as ggml's converter does: norms with the 1 that Gemma adds to them."""

    def keys(writer: gguf.GGUFWriter) -> None:
        add_dimensions(writer, config, config.rope_parameters["full_attention"])
        writer.add_sliding_window(WINDOW)
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)

    tensors = gguf_tensors(folder, GEMMA3_NAMES)
    with_one = ((name, w.astype("f4") + 1 if "norm" in name else w) for name, w in tensors)
    write_gguf(folder / "f16.gguf", "gemma3", keys, with_one)


def main() -> None:
    for name, (model, dtype, norm_center) in MODELS.items():
        print(name)
        folder = OUT / name
        model = model.float().eval()
        golden = seeded_golden(
            model, PROMPT_LENGTHS, norm_center=norm_center, dtype=dtype
        )
        shard_size = "30KB" if name == "mistral" else "5GB"
        save_folder(folder, model, dtype, max_shard_size=shard_size)
        (folder / "logits.golden").write_bytes(golden)
    write_gemma3(OUT / "gemma3", MODELS["gemma3"][0].config)


main()
