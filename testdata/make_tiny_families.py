"""Makes tiny seeded models of many families, in both formats, and what transformers computes.

Oracle: each family's own class of the Python package transformers, float32, eager attention. The
files have the form that tiny_model.py describes. Run from the repository root, for all families or
for those named:

    pip install torch transformers gguf safetensors numpy
    python testdata/make_tiny_families.py [FAMILY ...]
"""

import sys
from pathlib import Path

import gguf
import tiny_model
from tiny_model import LAYER_NAMES, add_dimensions
from transformers import AutoModelForCausalLM, Qwen3Config

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


def make(name: str, config, architecture: str, keys=None, tensors=None) -> None:
    """Writes one model in both formats, and its golden logits.

    `keys` adds to the metadata of the GGUF file; `tensors` changes what it holds.
    """
    print(name)
    folder = ROOT / f"tiny-{name}"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    golden = tiny_model.seeded_golden(model, PROMPT_LENGTHS)
    tiny_model.save_folder(folder, model)

    def all_keys(writer):
        add_dimensions(writer, config)
        if keys:
            keys(writer)

    stored = tiny_model.gguf_tensors(folder, LAYER_NAMES)
    stored = tensors(stored) if tensors else stored
    tiny_model.write_gguf(folder / "f16.gguf", architecture, all_keys, stored)
    (folder / "f16.golden").write_bytes(golden)


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


FAMILIES = {function.__name__: function for function in [qwen3, qwen3_yarn]}

for family in sys.argv[1:] or FAMILIES:
    FAMILIES[family]()
