"""Computes with transformers the hidden states of some tiny models that are there already.

Oracle: the last_hidden_state of each family's own class, float32, eager attention: the states after
the last norm. Run from the repository root, after make_tiny_families.py:

    pip install torch transformers safetensors numpy && python testdata/make_tiny_states.py

Written per family: states.golden. It is, little-endian, for each prompt: `num_prompt, hidden_size:
u32`, `prompt: u32 * num_prompt`, `states: f32 * num_prompt * hidden_size`.
"""

import struct
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

ROOT = Path("testdata")
# Untied weights and plain norms; norms with an offset, scaled embeddings, and windows.
FAMILIES = ["qwen3", "gemma2"]
# Around the edges of 16-token blocks, and beyond Gemma's window of 24.
PROMPT_LENGTHS = [1, 17, 33]


@torch.no_grad()
def states(family: str, random: np.random.Generator) -> bytes:
    model = AutoModel.from_pretrained(
        ROOT / f"tiny-{family}", attn_implementation="eager", dtype="float32"
    ).eval()
    out = b""
    for length in PROMPT_LENGTHS:
        prompt = random.integers(0, model.config.vocab_size, length)
        values = model(torch.tensor(prompt)[None], use_cache=False).last_hidden_state[0]
        out += struct.pack("<II", length, values.shape[-1])
        out += prompt.astype("<u4").tobytes()
        out += values.numpy().astype("<f4").tobytes()
        print(f"{family} {length}: largest {values.abs().max():.2f}")
    return out


def main() -> None:
    for seed, family in enumerate(FAMILIES):
        golden = states(family, np.random.default_rng(seed))
        (ROOT / f"tiny-{family}" / "states.golden").write_bytes(golden)


if __name__ == "__main__":
    main()
