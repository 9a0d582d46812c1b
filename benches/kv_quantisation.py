#!/usr/bin/env python3
"""What schemes of storing KV cost in quality, imitated in PyTorch.

Keys (after position embedding) and values are rounded as a scheme would store them, everything
else stays f32. Two kinds of model:

    kv_quantisation.py --gguf FILE --text testdata/fixed_text.txt   a real one of the Llama family
    kv_quantisation.py --biases 0 30 60 100                         random, Qwen2.5-0.5B's shape

The random one has 24 layers with key biases; in three layers one pair of channels of each KV head
has a bias of the given length, while keys otherwise have deviation 1.4. It reads 512 random tokens.
A real model also gets a needle test: five digits that it must find again, at three depths of a
context of about 1,200 tokens.

Needs torch, and transformers with gguf for a real model. Everything is seeded.
"""

import argparse
import math
import os

import torch

torch.set_grad_enabled(False)
HEAD_DIM = 64
SIGNS = torch.randint(0, 2, (HEAD_DIM,), generator=torch.Generator().manual_seed(7)) * 2.0 - 1.0
HADAMARD = torch.tensor(
    [[(-1.0) ** bin(i & j).count("1") for j in range(HEAD_DIM)] for i in range(HEAD_DIM)]
) / math.sqrt(HEAD_DIM)


def int8(x, group=HEAD_DIM, levels=127.0):
    """Rounds to codes with one bf16 scale, rounded up, for each group of a token's head."""
    groups = x.reshape(*x.shape[:-1], -1, group)
    exact = groups.abs().amax(-1, keepdim=True) / levels
    scale = exact.bfloat16().float()
    scale = torch.where(scale < exact, (scale * (1 + 1 / 128)).bfloat16().float(), scale)
    scale = scale.clamp_min(1e-30)
    return (torch.round(groups / scale).clamp(-levels, levels) * scale).reshape(x.shape)


def rotated(x, levels=127.0):
    """As `int8`, of the head rotated by signs and a Hadamard transform."""
    return int8((x * SIGNS) @ HADAMARD, levels=levels) @ HADAMARD * SIGNS


def with_exact_largest(x, count):
    """As `rotated`, with the `count` largest elements of a head kept apart as bf16."""
    largest = x.abs().topk(count, -1).indices
    apart = torch.zeros_like(x).scatter(-1, largest, x.gather(-1, largest).bfloat16().float())
    return rotated(x.scatter(-1, largest, 0.0)) + apart


# Name, bytes of a key and a value of 64 dimensions, functions for keys and for values, and whether
# large biases are left out of stored keys.
SCHEMES = [
    ("f16", 256, lambda k: k.half().float(), lambda v: v.half().float(), False),
    ("bf16", 256, lambda k: k.bfloat16().float(), lambda v: v.bfloat16().float(), False),
    ("int8, a scale per head", 132, int8, int8, False),
    ("int8, scales per 32", 136, lambda k: int8(k, 32), lambda v: int8(v, 32), False),
    ("int8, scales per 16", 144, lambda k: int8(k, 16), lambda v: int8(v, 16), False),
    ("keys rotated", 132, rotated, int8, False),
    ("keys and values rotated", 132, rotated, rotated, False),
    ("  9 bits for keys, 7 for values", 132, lambda k: rotated(k, 255.0),
     lambda v: rotated(v, 63.0), False),
    ("  key's largest element apart", 135, lambda k: with_exact_largest(k, 1), rotated, False),
    ("  key's two largest apart", 138, lambda k: with_exact_largest(k, 2), rotated, False),
    ("  large key biases not stored", 132, rotated, rotated, True),
]  # fmt: skip
EXACT = ("f32", 512, lambda k: k, lambda v: v, False)


def rope(x, theta):
    """Turns heads `[heads, tokens, dimensions]`, dimension i with i + dimensions / 2."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half).double() / half)
    angles = torch.arange(x.shape[1]).double()[:, None] * frequencies
    cos, sin = angles.cos().float(), angles.sin().float()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def norm(x, weight, epsilon):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def large_biases(bias):
    """The biases `[heads, dimensions]` of pairs eight times longer than the median one."""
    half = bias.shape[-1] // 2
    length = torch.hypot(bias[:, :half], bias[:, half:])
    large = length > 8 * length.median(-1, keepdim=True).values
    return bias * torch.cat([large, large], -1)


def forward(model, tokens, scheme, num_rows=0):
    """Returns log probabilities of the last `num_rows` tokens, or of all, `[rows, vocabulary]`."""
    _, _, store_keys, store_values, leaves_biases_out = scheme
    theta, epsilon = model["theta"], model["epsilon"]
    hidden = model["embedding"][tokens]
    mask = torch.full((len(tokens), len(tokens)), -1e30).triu(1)
    for layer in model["layers"]:
        x = norm(hidden, layer["attention_norm"], epsilon)

        def heads(part, x=x, layer=layer):
            projected = x @ layer[part].T + layer.get(part + "_bias", 0.0)
            return projected.reshape(len(tokens), -1, HEAD_DIM).transpose(0, 1)

        queries, keys, values = rope(heads("q"), theta), rope(heads("k"), theta), heads("v")
        if leaves_biases_out and "k_bias" in layer:
            biases = large_biases(layer["k_bias"].reshape(-1, HEAD_DIM))
            left_out = rope(biases[:, None, :].expand(keys.shape), theta)
            keys = store_keys(keys - left_out) + left_out
        else:
            keys = store_keys(keys)
        group = len(queries) // len(keys)
        keys = keys.repeat_interleave(group, 0)
        values = store_values(values).repeat_interleave(group, 0)
        weights = (queries @ keys.transpose(1, 2) / math.sqrt(HEAD_DIM) + mask).softmax(-1)
        attended = (weights @ values).transpose(0, 1).reshape(len(tokens), -1)
        hidden = hidden + attended @ layer["o"].T
        x = norm(hidden, layer["feed_forward_norm"], epsilon)
        gated = torch.nn.functional.silu(x @ layer["gate"].T) * (x @ layer["up"].T)
        hidden = hidden + gated @ layer["down"].T
    hidden = norm(hidden[-num_rows:], model["norm"], epsilon)
    return torch.log_softmax(hidden @ model["head"].T, -1)


def random_qwen(bias_length):
    """A model of Qwen2.5-0.5B's shape but for its vocabulary."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    width, inner, vocabulary = 896, 4864, 8192
    layers = []
    for number in range(24):
        k_bias = random(2, HEAD_DIM) * 0.5
        for head in range(2):
            pair = int(torch.randint(8, 32, (1,), generator=generator))
            angle = float(torch.rand(1, generator=generator)) * 2 * math.pi
            if number in (0, 9, 18):
                k_bias[head, pair] += bias_length * math.cos(angle)
                k_bias[head, pair + 32] += bias_length * math.sin(angle)
        layers.append({
            "attention_norm": torch.ones(width),
            "feed_forward_norm": torch.ones(width),
            "q": random(width, width) * 1.4 / math.sqrt(width),
            "q_bias": random(width) * 0.5,
            "k": random(128, width) * 1.4 / math.sqrt(width),
            "k_bias": k_bias.reshape(-1),
            "v": random(128, width) / math.sqrt(width),
            "v_bias": random(128) * 0.1,
            "o": random(width, width) / math.sqrt(width),
            "gate": random(inner, width) / math.sqrt(width),
            "up": random(inner, width) / math.sqrt(width),
            "down": random(width, inner) / math.sqrt(inner),
        })
    model = {
        "theta": 1e6,
        "epsilon": 1e-6,
        "embedding": random(vocabulary, width),
        "norm": torch.ones(width),
        "head": random(vocabulary, width) * 2.5 / math.sqrt(width),
        "layers": layers,
    }
    return model, [torch.randint(0, vocabulary, (512,), generator=generator)]


def real_model(path, text):
    """A Llama from a GGUF file, two windows of 512 tokens of a text, and needle prompts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = os.path.split(path)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    weights, config = loaded.state_dict(), loaded.config
    assert config.hidden_size // config.num_attention_heads == HEAD_DIM
    names = {
        "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
        "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }  # fmt: skip
    model = {
        "theta": config.rope_parameters["rope_theta"],
        "epsilon": config.rms_norm_eps,
        "embedding": weights["model.embed_tokens.weight"],
        "norm": weights["model.norm.weight"],
        "head": weights["lm_head.weight"],
        "layers": [
            {name: weights[f"model.layers.{i}.{theirs}.weight"] for name, theirs in names.items()}
            for i in range(config.num_hidden_layers)
        ],
    }
    with open(text, encoding="utf-8") as file:
        text = file.read()
    tokens = torch.tensor(tokenizer(text)["input_ids"])
    windows = list(tokens[:1024].split(512))
    needles = []
    for depth, code in [(0.1, "48213"), (0.5, "90571"), (0.9, "16384")]:
        filler = text[:5400]
        cut = filler.index(". ", int(depth * len(filler))) + 2
        asked = f"The secret code is {code}. " + filler[cut:] + "\n\nThe secret code is"
        prompt = tokenizer(filler[:cut] + asked)["input_ids"]
        answer = tokenizer(f" {code}")["input_ids"]
        needles.append((torch.tensor(prompt + answer), len(answer)))
    return model, windows, needles


def compare(model, windows, needles=()):
    exact = [forward(model, window, EXACT) for window in windows]
    print("| scheme | bytes | mean KL divergence | top-1 agreement |", end="")
    print(" needle digits found, mean log p |" if needles else "")
    for scheme in [EXACT, *SCHEMES]:
        divergence = agreeing = rows = 0.0
        for window, expected in zip(windows, exact):
            got = forward(model, window, scheme)
            divergence += (expected.exp() * (expected - got)).sum().item()
            agreeing += (expected.argmax(-1) == got.argmax(-1)).sum().item()
            rows += len(window)
        print(f"| {scheme[0]} | {scheme[1]} | {divergence / rows:.2e} |", end="")
        print(f" {100 * agreeing / rows:.2f} % |", end="" if needles else "\n", flush=True)
        if needles:
            found, likelihood = [], []
            for tokens, length in needles:
                answer = tokens[-length:]
                got = forward(model, tokens, scheme, length + 1)[:-1]
                found += (got.argmax(-1) == answer).tolist()
                likelihood += got.gather(-1, answer[:, None]).flatten().tolist()
            mean = sum(likelihood) / len(likelihood)
            print(f" {sum(found)} of {len(found)}, {mean:.4f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gguf", help="a Llama with heads of 64 dimensions and float weights")
    parser.add_argument("--text", default="testdata/fixed_text.txt")
    parser.add_argument("--biases", type=float, nargs="*", default=[])
    arguments = parser.parse_args()
    if arguments.gguf:
        compare(*real_model(arguments.gguf, arguments.text))
    for length in arguments.biases:
        print(f"\nkey biases of {length:g}")
        compare(*random_qwen(length))


if __name__ == "__main__":
    main()
