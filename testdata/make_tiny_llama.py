"""Makes testdata/tiny-llama: a seeded Llama as GGUF files, and what transformers computes with it.

Oracle: `LlamaForCausalLM` of the Python package transformers, float32, eager attention. The
quantised files are judged against the same model with the dequantised weights. Run from the
repository root:

    pip install torch transformers gguf numpy && python testdata/make_tiny_llama.py

Written per variant: NAME.gguf and NAME.golden. The latter is, little-endian, for each prompt:
`num_prompt, num_output, num_rows: u32`, `prompt: u32 * num_prompt`, `output: u32 * num_output`
(the greedy continuation), `logits: f32 * num_rows * vocab_size` (the last rows of the prompt: all
of a short one, one of a long one).
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from tiny_model import golden, permute
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 192, 64, 128, 4, 2, 2
CONTEXT = 256
# Around the edges of 16-token blocks; the last one spans many blocks and chunks.
PROMPT_LENGTHS = [1, 15, 16, 17, 33, 100]
OUT = Path("testdata/tiny-llama")


def unpermute(weights: np.ndarray, heads: int) -> np.ndarray:
    """Undoes what `permute` does."""
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def make_model(tied: bool, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                # Sharp enough attention and large enough layers that a wrong one shows.
                fan_in = parameter.shape[-1]
                scale = 2.0 if ("q_proj" in name or "k_proj" in name) else 1.2
                parameter.copy_(torch.randn_like(parameter) * scale / fan_in**0.5)
    return model


def gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    if name in fixed:
        return fixed[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{parts[part]}.weight"


def permuted_heads(name: str) -> int | None:
    return HEADS if "attn_q" in name else KV_HEADS if "attn_k" in name else None


def write_gguf(path: Path, model: LlamaForCausalLM, matrix_kind, table_kind) -> None:
    """Writes the model and sets its parameters to what the file's weights stand for."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    for hf_name, parameter in model.named_parameters():
        name = gguf_name(hf_name)
        weights = parameter.detach().numpy()
        heads = permuted_heads(name)
        if heads:
            weights = permute(weights, heads)
        kind = gguf.GGMLQuantizationType.F32
        if weights.ndim == 2:
            kind = table_kind if name in ("token_embd.weight", "output.weight") else matrix_kind
        stored = gguf.quants.quantize(np.ascontiguousarray(weights), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        read_back = gguf.quants.dequantize(stored, kind).reshape(weights.shape)
        if heads:
            read_back = unpermute(read_back, heads)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(read_back.copy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    types = gguf.GGMLQuantizationType
    variants = [
        ("f32", False, types.F32, types.F32),
        ("q4_1", True, types.Q4_1, types.Q8_0),
    ]
    for seed, (name, tied, matrix_kind, table_kind) in enumerate(variants):
        print(name)
        model = make_model(tied, seed)
        write_gguf(OUT / f"{name}.gguf", model, matrix_kind, table_kind)
        (OUT / f"{name}.golden").write_bytes(golden(model, PROMPT_LENGTHS, seed))


if __name__ == "__main__":
    main()
