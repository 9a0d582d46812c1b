"""Makes testdata/tiny-lora: adapters for testdata/tiny-llama, and what PEFT computes with them.

Oracle: `PeftModel` of the Python package peft around the model of make_tiny_llama.py, float32. Run
from the repository root:

    pip install torch transformers peft gguf numpy && python testdata/make_tiny_lora.py

Written per adapter: NAME/adapter_config.json, NAME/adapter_model.safetensors and NAME.golden, whose
form make_tiny_llama.py describes. `attention` changes queries and values with rank 4; `all` changes
every projection with rank 6, in half precision and with rank-stabilised scaling.
"""

import json
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model

from make_tiny_llama import golden, make_model

OUT = Path("testdata/tiny-lora")
ADAPTERS = {
    "attention": (LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]), torch.float32),
    "all": (
        LoraConfig(r=6, lora_alpha=5, use_rslora=True, target_modules="all-linear"),
        torch.float16,
    ),
}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    # The model is that of tiny-llama/f32.gguf.
    for seed, (name, (config, dtype)) in enumerate(ADAPTERS.items()):
        model = get_peft_model(make_model(tied=False, seed=0), config)
        torch.manual_seed(100 + seed)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    noise = torch.randn_like(parameter) * 0.5 / parameter.shape[-1] ** 0.5
                    parameter.copy_(noise.to(dtype).float())
        model.eval()
        (OUT / f"{name}.golden").write_bytes(golden(model, np.random.default_rng(10 + seed)))
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
    main()
