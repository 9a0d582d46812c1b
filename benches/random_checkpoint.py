"""Checkpoint folders at the true shapes of models, with seeded random bf16 weights.

Nothing is fetched: the shapes are those of the published config.json files, the weights come from a
seed, and the tokenizer has a text of its own for each id.
"""

import json

import torch
import transformers

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


def shapes():
    """Returns the configurations of the models as they are published, by name."""
    common = {"initializer_range": 0.02, "tie_word_embeddings": True, "dtype": torch.bfloat16}
    return {
        "Qwen2.5-0.5B": transformers.Qwen2Config(
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            vocab_size=151_936,
            max_position_embeddings=32_768,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            **common,
        ),
        "Qwen3-0.6B": transformers.Qwen3Config(
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=151_936,
            max_position_embeddings=40_960,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            **common,
        ),
        "Llama-3.2-1B": transformers.LlamaConfig(
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            vocab_size=128_256,
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            rope_parameters=LLAMA3_ROPE,
            **common,
        ),
    }


def seed_weights(model, generator):
    """Fills a model with numbers that make every part of it show in the logits."""
    sigma = model.config.initializer_range
    for name, weights in model.named_parameters():
        noise = torch.empty(weights.shape, dtype=weights.dtype).normal_(generator=generator)
        if "norm" in name:
            weights.copy_(1 + 0.1 * noise)
        elif name.endswith("bias"):
            weights.copy_(0.5 * noise)
        # Sharper than at the start of training, or attention would hardly tell positions apart.
        elif "q_proj" in name or "k_proj" in name:
            weights.copy_(2 * sigma * noise)
        else:
            weights.copy_(sigma * noise)


def token_text(token):
    """Returns the text that stands for a token in the synthetic vocabulary."""
    return f"<{token}>"


def synthetic_tokenizer(vocab_size):
    """Returns a tokenizer.json in which every id has a text of its own."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    byte_level["use_regex"] = True
    vocab = {token_text(token): token for token in range(vocab_size)}
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
    }


@torch.no_grad()
def write(config, folder, seed):
    """Writes config.json, weights (in several files beyond 1 GB) and a tokenizer."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    seed_weights(model, torch.Generator().manual_seed(seed))
    model.save_pretrained(folder, max_shard_size="1GB")
    # It would name token ids that end an answer, and the texts here mean nothing.
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_tokenizer(config, folder)


def write_tokenizer(config, folder):
    """Writes the synthetic tokenizer, in place of any other."""
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    tokenizer = json.dumps(synthetic_tokenizer(config.vocab_size))
    (folder / "tokenizer.json").write_text(tokenizer)
