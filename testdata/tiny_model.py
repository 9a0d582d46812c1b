"""What the scripts that make tiny models share: seeded weights, files, and golden logits.

A model is made by transformers, gets seeded weights in half precision, and is saved as people find
models: as a folder with config.json and model.safetensors, and as a GGUF file whose tensors have
ggml's names. NAME.golden has the form that make_tiny_llama.py describes.
"""

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file

NUM_OUTPUT = 20
# Prompts of up to so many tokens keep the logits of all their rows.
ALL_ROWS = 17

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
# The names of an expert's matrices, in Qwen3's words and in Mixtral's.
EXPERT_NAMES = {
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
}


@torch.no_grad()
def seed_weights(
    model: torch.nn.Module,
    seed: int,
    norm_center: float = 1.0,
    embedding_size: float = 0.3,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Fills a model with numbers of a stored type, sharp enough that a wrong layer shows.

    Embeddings should be small beside what layers add, or the output is the input's echo.
    """
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "norm" in name:
            weights = norm_center + 0.2 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            weights = embedding_size * noise
        else:
            sharp = any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "gate.weight"))
            weights = noise * (2.0 if sharp else 1.2) / parameter.shape[-1] ** 0.5
        parameter.copy_(weights.to(dtype).float())


def save_folder(
    path: Path,
    model: torch.nn.Module,
    dtype: torch.dtype = torch.float16,
    max_shard_size: str = "5GB",
) -> None:
    """Saves config.json and safetensors of a stored type; the model stays as it is."""
    model.to(dtype)
    model.save_pretrained(path, max_shard_size=max_shard_size)
    model.float()
    (path / "generation_config.json").unlink(missing_ok=True)


def permute(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorders the rows of Q or K as ggml's converter does for `llama`: halves become neighbours."""
    rows, columns = weights.shape
    halves = weights.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def gguf_tensors(
    folder: Path, names: dict[str, str]
) -> Iterable[tuple[str, np.ndarray]]:
    """Returns the tensors of a folder under ggml's names, experts stacked."""
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, weights in load_file(folder / "model.safetensors").items():
        if name in fixed:
            yield fixed[name], weights
            continue
        layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
        if ".experts." in part:
            number, part = part.split(".experts.")[1].split(".")
            stack = experts.setdefault(f"blk.{layer}.{EXPERT_NAMES[part]}_exps.weight", {})
            stack[int(number)] = weights
        else:
            yield f"blk.{layer}.{names[part]}.weight", weights
    for name, stack in experts.items():
        yield name, np.stack([stack[number] for number in range(len(stack))])


def write_gguf(
    path: Path,
    architecture: str,
    keys: Callable[[gguf.GGUFWriter], None],
    tensors: Iterable[tuple[str, np.ndarray]],
) -> None:
    """Writes vectors in single and matrices in half precision."""
    writer = gguf.GGUFWriter(path, architecture)
    keys(writer)
    for name, weights in tensors:
        kind = np.float32 if weights.ndim == 1 else np.float16
        writer.add_tensor(name, np.ascontiguousarray(weights.astype(kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_dimensions(writer: gguf.GGUFWriter, config, rope: dict | None = None) -> None:
    """Writes the keys that every architecture has; `rope` is the model's only one if not given."""
    rope = rope or config.rope_parameters
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    head_dim = getattr(config, "head_dim", None)
    if head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)


class NearTie(Exception):
    """Two tokens with nearly the same logit: which is larger depends on rounding."""


@torch.no_grad()
def golden(model: torch.nn.Module, prompt_lengths: list[int], seed: int) -> bytes:
    """Returns prompts, their greedy continuations, and logits."""
    random = np.random.default_rng(seed)
    vocab_size = model.config.vocab_size
    out = b""
    for length in prompt_lengths:
        prompt = random.integers(0, vocab_size, length)
        logits = model(torch.tensor(prompt)[None], use_cache=False).logits[0]
        rows = length if length <= ALL_ROWS else 1
        tokens = prompt.tolist()
        for _ in range(NUM_OUTPUT):
            row = model(torch.tensor(tokens)[None], use_cache=False).logits[0, -1]
            best = row.topk(2).values
            if best[0] - best[1] < 1e-3:
                raise NearTie
            tokens.append(int(row.argmax()))
        out += struct.pack("<III", length, NUM_OUTPUT, rows)
        out += np.array(tokens, dtype="<u4").tobytes()
        out += logits[-rows:].numpy().astype("<f4").tobytes()
        print(f"  {length} -> {tokens[length:][:6]}, largest logit {logits.abs().max():.2f}")
    return out


def seeded_golden(
    model: torch.nn.Module, prompt_lengths: list[int], **seeding
) -> bytes:
    """Gives a model the weights of the first seed without near ties; returns its `golden`.

    `seeding` goes to `seed_weights`.
    """
    for seed in range(100):
        seed_weights(model, seed, **seeding)
        try:
            return golden(model, prompt_lengths, seed)
        except NearTie:
            continue
    raise NearTie
