"""Makes testdata/tiny-qwen2: a seeded Qwen2 as a GGUF file, and what transformers computes with it.

Oracle: `Qwen2ForCausalLM` of the Python package transformers, float32, eager attention. The files have
the form that make_tiny_llama.py describes. Keys have a bias of which one pair of dimensions of each
head is much larger than what depends on the token, as in Qwen2.5. Run from the repository root:

    pip install torch transformers gguf numpy && python testdata/make_tiny_qwen2.py
"""

from pathlib import Path

import gguf
import torch
from tiny_model import golden
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 96, 64, 64, 4, 2, 2
HEAD_DIM = HIDDEN // HEADS
CONTEXT = 256
# Around the edges of 16-token blocks; the last one spans many blocks and chunks.
PROMPT_LENGTHS = [1, 15, 16, 17, 33, 100]
# The pair of a key head with the large bias, and its length.
BIASED_PAIR, LARGE_BIAS = 5, 40.0
SEED = 3
OUT = Path("testdata/tiny-qwen2")
NAMES = {
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


def make_model() -> Qwen2ForCausalLM:
    torch.manual_seed(SEED)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-6,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = Qwen2ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif "k_proj.bias" in name:
                heads = 0.5 * torch.randn(KV_HEADS, HEAD_DIM)
                heads[:, BIASED_PAIR] += LARGE_BIAS * 0.8
                heads[:, BIASED_PAIR + HEAD_DIM // 2] += LARGE_BIAS * 0.6
                parameter.copy_(heads.reshape(-1))
            elif "bias" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
            elif "embed_tokens" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
                if "q_proj" in name:
                    # Queries that do not see the large bias much, so that tokens still matter.
                    for head in parameter.view(HEADS, HEAD_DIM, HIDDEN):
                        head[[BIASED_PAIR, BIASED_PAIR + HEAD_DIM // 2]] *= 0.05
    return model


def gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in fixed:
        return fixed[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def write_gguf(path: Path, model: Qwen2ForCausalLM) -> None:
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_vocab_size(VOCAB)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1_000_000.0)
    for name, parameter in model.named_parameters():
        writer.add_tensor(gguf_name(name), parameter.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    model = make_model()
    write_gguf(OUT / "f32.gguf", model)
    (OUT / "f32.golden").write_bytes(golden(model, PROMPT_LENGTHS, SEED))


main()
