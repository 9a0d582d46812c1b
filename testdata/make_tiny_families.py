"""Makes tiny seeded models of many families, in both formats, and what transformers computes.

Oracle: each family's own class of the Python package transformers, float32, eager attention. The
files have the form that tiny_model.py describes. Run from the repository root, for all families or
for those named:

    pip install torch transformers gguf safetensors numpy
    python testdata/make_tiny_families.py [FAMILY ...]
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import tiny_model
from tiny_model import LAYER_NAMES, add_dimensions
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

ROOT = Path("testdata")
# Around the edges of 16-token blocks; the last one spans many blocks and chunks.
PROMPT_LENGTHS = [1, 16, 17, 33, 100]
# Query heads are together wider than the hidden size.
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def make(
    name: str,
    config,
    architecture: str,
    keys: Callable[[gguf.GGUFWriter], None] | None = None,
    names: dict[str, str] = LAYER_NAMES,
    change: Callable[[str, np.ndarray], np.ndarray] = lambda _, weights: weights,
    **seeding: float,
) -> None:
    """Writes one model in both formats, and its golden logits.

    In the GGUF file there are `keys` besides the usual ones, tensors have the `names`, and `change`
    is what its converter does to a tensor, given its new name. `seeding` goes to the weights.
    """
    print(name)
    folder = ROOT / f"tiny-{name}"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    golden = tiny_model.seeded_golden(model, PROMPT_LENGTHS, **seeding)
    tiny_model.save_folder(folder, model)

    def all_keys(writer):
        add_dimensions(writer, config)
        if keys:
            keys(writer)

    tensors = tiny_model.gguf_tensors(folder, names)
    stored = ((name, change(name, weights)) for name, weights in tensors)
    tiny_model.write_gguf(folder / "f16.gguf", architecture, all_keys, stored)
    (folder / "logits.golden").write_bytes(golden)


def qwen3() -> None:
    config = Qwen3Config(**SIZES, num_hidden_layers=2, rope_theta=1e6, tie_word_embeddings=True)
    make("qwen3", config, "qwen3")


def qwen3_yarn() -> None:
    """One layer whose RoPE is scaled from 32 positions to 256."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 4.0,
    }
    config = Qwen3Config(**SIZES, num_hidden_layers=1, rope_parameters=rope)

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_scaling_yarn_beta_fast(4.0)

    make("qwen3-yarn", config, "qwen3", keys)


def permuted(name: str, weights: np.ndarray) -> np.ndarray:
    """Does to queries and keys what the converter does for the architecture `llama`."""
    if name.endswith("attn_q.weight"):
        return tiny_model.permute(weights, SIZES["num_attention_heads"])
    if name.endswith("attn_k.weight"):
        return tiny_model.permute(weights, SIZES["num_key_value_heads"])
    return weights


def mistral() -> None:
    """A window on every layer."""
    config = MistralConfig(**SIZES, num_hidden_layers=2, rope_theta=1e4, sliding_window=24)
    make("mistral", config, "llama", lambda it: it.add_sliding_window(24), change=permuted)


def gemma2() -> None:
    """Soft caps that bend, and a scale that is not that of the heads."""
    config = Gemma2Config(
        **SIZES,
        num_hidden_layers=3,
        rope_theta=1e4,
        sliding_window=24,
        query_pre_attn_scalar=4,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
        tie_word_embeddings=True,
    )
    names = {
        **LAYER_NAMES,
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(24)
        writer.add_attn_logit_softcapping(3.0)
        writer.add_final_logit_softcapping(4.0)

    def change(name: str, weights: np.ndarray) -> np.ndarray:
        # The file cannot say what queries are scaled by, so they are scaled here.
        if name.endswith("attn_q.weight"):
            return weights * np.float16(2)
        return weights.astype(np.float32) + 1 if weights.ndim == 1 else weights

    make("gemma2", config, "gemma2", keys, names, change, norm_center=0.0, embedding_size=0.05)


def phi3() -> None:
    """Half of each head turns, by divisors for short contexts and for long ones."""
    num_pairs = SIZES["head_dim"] // 4
    short = [1.0 + 0.1 * i for i in range(num_pairs)]
    long = [1.0 + 2.0 * i for i in range(num_pairs)]
    sizes = {key: value for key, value in SIZES.items() if key != "head_dim"}
    config = Phi3Config(
        **{**sizes, "hidden_size": 64},
        num_hidden_layers=1,
        original_max_position_embeddings=32,
        sliding_window=48,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": 32,
        },
    )
    scale = config.max_position_embeddings / 32
    attention_factor = math.sqrt(1 + math.log(scale) / math.log(32))

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_dimension_count(2 * num_pairs)
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_scaling_attn_factors(attention_factor)
        writer.add_sliding_window(48)
        writer.add_tensor("rope_factors_short.weight", np.array(short, dtype=np.float32))
        writer.add_tensor("rope_factors_long.weight", np.array(long, dtype=np.float32))

    # A server that takes long sequences has the long divisors for short ones too.
    rope = config.rope_parameters
    rope["short_factor"] = long
    make("phi3", config, "phi3", keys)
    saved = ROOT / "tiny-phi3/config.json"
    rope["short_factor"] = short
    config.architectures, config.dtype = ["Phi3ForCausalLM"], "float16"
    config.save_pretrained(saved.parent)
    # One that takes short ones only has the short divisors.
    model = AutoModelForCausalLM.from_pretrained(
        saved.parent, attn_implementation="eager", dtype="float32"
    )
    golden = tiny_model.golden(model.eval(), [1, 12], seed=1)
    (ROOT / "tiny-phi3/short.golden").write_bytes(golden)


def mixtral() -> None:
    config = MixtralConfig(
        **{**SIZES, "intermediate_size": 32},
        num_hidden_layers=2,
        rope_theta=1e4,
        num_local_experts=4,
        num_experts_per_tok=2,
    )

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(4)
        writer.add_expert_used_count(2)

    make("mixtral", config, "llama", keys, change=permuted)


def qwen3_moe() -> None:
    config = Qwen3MoeConfig(
        **SIZES,
        num_hidden_layers=1,
        rope_theta=1e4,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=16,
        norm_topk_prob=True,
    )

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(8)
        writer.add_expert_used_count(3)
        writer.add_expert_feed_forward_length(16)

    make("qwen3-moe", config, "qwen3moe", keys)


FAMILIES = {function.__name__: function for function in [qwen3, qwen3_yarn, mistral, gemma2, phi3, mixtral, qwen3_moe]}

for family in sys.argv[1:] or FAMILIES:
    FAMILIES[family]()
