"""Makes testdata/tiny-lora: adapters for tiny models, and what PEFT computes with them.

Oracle: `PeftModel` of the Python package peft around the models of make_tiny_llama.py and of
make_tiny_families.py's phi3, float32. Run from the repository root, for all adapters or for those
named:

    pip install torch transformers peft gguf numpy safetensors
    python testdata/make_tiny_lora.py [ADAPTER ...]

Written per adapter: NAME/adapter_config.json, NAME/adapter_model.safetensors and NAME.golden, whose
form make_tiny_llama.py describes. On Llama, `attention` changes queries and values with rank 4;
`all` changes every projection with rank 6, in half precision and with rank-stabilised scaling. On
Phi-3, whose projections are fused, `phi3-qkv` changes the one before attention with rank 4;
`phi3-all` changes every module, each with a rank of its own.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import make_tiny_llama
import torch
from peft import LoraConfig, get_peft_model
from tiny_model import NearTie, golden
from transformers import AutoConfig, AutoModelForCausalLM

OUT = Path("testdata/tiny-lora")
PHI3 = Path("testdata/tiny-phi3")


def llama() -> torch.nn.Module:
    """The model of tiny-llama/f32.gguf."""
    return make_tiny_llama.make_model(tied=False, seed=0)


def phi3() -> torch.nn.Module:
    """The model of tiny-phi3 in a server that takes long sequences: the long divisors for all."""
    config = AutoConfig.from_pretrained(PHI3)
    config.rope_parameters["short_factor"] = config.rope_parameters["long_factor"]
    model = AutoModelForCausalLM.from_pretrained(
        PHI3, config=config, attn_implementation="eager", dtype="float32"
    )
    return model.eval()


# The model, the lengths of prompts, how the adapter is made and stored, and a seed from which near
# ties were not met.
ADAPTERS: dict[str, tuple[Callable, list[int], LoraConfig, torch.dtype, int]] = {
    "attention": (
        llama,
        make_tiny_llama.PROMPT_LENGTHS,
        LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
        torch.float32,
        0,
    ),
    "all": (
        llama,
        make_tiny_llama.PROMPT_LENGTHS,
        LoraConfig(r=6, lora_alpha=5, use_rslora=True, target_modules="all-linear"),
        torch.float16,
        1,
    ),
    "phi3-qkv": (
        phi3,
        [1, 16, 17, 33, 100],
        LoraConfig(r=4, lora_alpha=8, target_modules=["qkv_proj"]),
        torch.float32,
        2,
    ),
    "phi3-all": (
        phi3,
        [1, 16, 17, 33, 100],
        LoraConfig(
            r=6,
            lora_alpha=5,
            target_modules="all-linear",
            rank_pattern={"qkv_proj": 8, "gate_up_proj": 3, "down_proj": 2},
        ),
        torch.bfloat16,
        3,
    ),
}


def make(name: str) -> None:
    base, prompt_lengths, config, dtype, seed = ADAPTERS[name]
    print(name)
    while True:
        model = get_peft_model(base(), config)
        torch.manual_seed(100 + seed)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    noise = torch.randn_like(parameter) * 0.5 / parameter.shape[-1] ** 0.5
                    parameter.copy_(noise.to(dtype).float())
        model.eval()
        try:
            logits = golden(model, prompt_lengths, 10 + seed)
            break
        except NearTie:
            seed += len(ADAPTERS)
    (OUT / f"{name}.golden").write_bytes(logits)
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name:
            parameter.data = parameter.data.to(dtype)
    model.save_pretrained(OUT / name)
    (OUT / name / "README.md").unlink(missing_ok=True)
    path = OUT / name / "adapter_config.json"
    # The order of a set of names changes from run to run.
    adapter_config = json.loads(path.read_text())
    adapter_config["target_modules"] = sorted(adapter_config["target_modules"])
    path.write_text(json.dumps(adapter_config, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for adapter in sys.argv[1:] or ADAPTERS:
        make(adapter)
