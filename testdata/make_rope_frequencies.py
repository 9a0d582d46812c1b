"""Makes testdata/rope_frequencies.txt: what transformers makes of RoPE scalings.

Oracle: `ROPE_INIT_FUNCTIONS` of the Python package transformers. A line for each case: its name, the
attention factor, and the frequency of each pair. What the names stand for is said here and in the
tests of crates/model/src/rope/scaling.rs. Run from the repository root:

    pip install torch transformers && python testdata/make_rope_frequencies.py
"""

from pathlib import Path

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1 + 0.25 * i for i in range(8)],
    "long_factor": [1.5 + 0.75 * i for i in range(8)],
    "original_max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
# Name, base, dimensions of a head, share of them that turns, longest sequence, scaling.
CASES = [
    ("linear", 10_000.0, 16, 1.0, 4096, {"rope_type": "linear", "factor": 2.5}),
    ("llama3", 500_000.0, 32, 1.0, 131_072, LLAMA3),
    ("yarn", 1_000_000.0, 32, 1.0, 131_072, YARN),
    ("yarn-betas", 1_000_000.0, 32, 1.0, 131_072, {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}),
    ("yarn-exact", 150_000.0, 64, 1.0, 131_072, {**YARN, "factor": 32.0, "truncate": False}),
    ("yarn-mscale", 1e4, 64, 1.0, 131_072, {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}),
    ("yarn-partial", 1e4, 32, 0.5, 131_072, {**YARN, "attention_factor": 1.25}),
    ("longrope-short", 1e4, 16, 1.0, 4096, LONGROPE),
    ("longrope-long", 1e4, 16, 1.0, 4097, LONGROPE),
]

lines = []
for name, theta, head_dim, share, longest, scaling in CASES:
    parameters = {**scaling, "rope_theta": theta, "partial_rotary_factor": share}
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters=parameters,
    )
    compute = ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
    frequencies, attention_factor = compute(config, "cpu", seq_len=longest)
    numbers = [attention_factor, *frequencies.tolist()]
    lines.append(" ".join([name, *(f"{number:.9e}" for number in numbers)]) + "\n")
Path("testdata/rope_frequencies.txt").write_text("".join(lines))
