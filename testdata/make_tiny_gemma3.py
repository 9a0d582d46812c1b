"""Makes testdata/tiny-gemma3: a seeded Gemma 3 as a GGUF file, and what transformers computes.

Oracle: `Gemma3ForCausalLM` of the Python package transformers, float32, eager attention, with the
dequantised weights. The files have the form that make_tiny_llama.py describes. Run from the
repository root:

    pip install torch transformers gguf numpy && python testdata/make_tiny_gemma3.py
"""

import struct
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 96, 32, 64, 4, 1, 16
# The sixth layer is the first that sees all tokens.
LAYERS = 7
CONTEXT, WINDOW = 256, 24
# Something to serve: a SentencePiece vocabulary of printable ASCII. There is no end token.
TOKENS = ["<unk>", "\u2581", *(chr(code) for code in range(0x21, 0x7F))]
PROMPT_LENGTHS = [1, 16, 23, 24, 25, 100]
NUM_OUTPUT = 20
SEED = 5
OUT = Path("testdata/tiny-gemma3")
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_model() -> Gemma3ForCausalLM:
    torch.manual_seed(SEED)
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        query_pre_attn_scalar=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        sliding_window=WINDOW,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = Gemma3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_norm" in name or "k_norm" in name:
                # Sharp attention, so that a wrong window shows.
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif "norm" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            elif "embed_tokens" in name:
                # Small beside what the layers add, so that the output is not the input's echo.
                parameter.copy_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return model


def gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in fixed:
        return fixed[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{NAMES[part]}.weight"


def write_gguf(path: Path, model: Gemma3ForCausalLM) -> None:
    """Writes the model and sets its parameters to what the file's weights stand for."""
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_sliding_window(WINDOW)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * VOCAB)
    types = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.NORMAL] * (VOCAB - 1)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    for hf_name, parameter in model.named_parameters():
        weights = parameter.detach().numpy()
        if weights.ndim == 1:
            # ggml's converter adds the 1 that Gemma adds when it normalises.
            weights, kind = weights + np.float32(1), gguf.GGMLQuantizationType.F32
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
        stored = gguf.quants.quantize(np.ascontiguousarray(weights), kind)
        writer.add_tensor(gguf_name(hf_name), stored, raw_dtype=kind)
        read_back = gguf.quants.dequantize(stored, kind).reshape(weights.shape)
        with torch.no_grad():
            offset = 1 if weights.ndim == 1 else 0
            parameter.copy_(torch.from_numpy(read_back - np.float32(offset)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def golden(model: Gemma3ForCausalLM, random: np.random.Generator) -> bytes:
    out = b""
    for length in PROMPT_LENGTHS:
        prompt = random.integers(0, VOCAB, length)
        logits = model(torch.tensor(prompt)[None]).logits[0]
        rows = length if length <= 25 else 1
        tokens = prompt.tolist()
        for _ in range(NUM_OUTPUT):
            row = model(torch.tensor(tokens)[None]).logits[0, -1]
            best = row.topk(2).values
            # A near tie would make the test depend on rounding.
            assert best[0] - best[1] > 1e-3, "choose another seed"
            tokens.append(int(row.argmax()))
        out += struct.pack("<III", length, NUM_OUTPUT, rows)
        out += np.array(tokens, dtype="<u4").tobytes()
        out += logits[-rows:].numpy().astype("<f4").tobytes()
        print(f"{length} -> {tokens[length:][:6]}, largest logit {logits.abs().max():.2f}")
    return out


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    model = make_model()
    print(model.config.layer_types, model.config.rope_parameters)
    write_gguf(OUT / "q8_0.gguf", model)
    (OUT / "q8_0.golden").write_bytes(golden(model, np.random.default_rng(SEED)))


main()
