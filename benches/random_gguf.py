#!/usr/bin/env python3
"""Writes a GGUF file at the shape of Qwen2.5-0.5B with seeded random weights in BF16.

For measuring speed at a shape whose weights are not at hand; what such a model writes means nothing.
Weights have the scale that keeps a transformer's activations near 1, keys have biases as the real
model's do: small ones, and a few pairs of dimensions with a large one. The tokenizer is byte-level BPE
whose merges join pairs of ASCII letters; all other tokens stand for their own number.

    pip install gguf numpy
    benches/random_gguf.py qwen05-bf16.gguf
    llama-quantize qwen05-bf16.gguf qwen05-q8_0.gguf Q8_0
    llama-quantize --token-embedding-type q8_0 qwen05-bf16.gguf qwen05-q4_0.gguf Q4_0
"""

import argparse
import string

import gguf
import numpy as np

LAYERS, HIDDEN, FFN = 24, 896, 4864
HEADS, KV_HEADS, HEAD_DIM = 14, 2, 64
VOCAB, CONTEXT = 151_936, 32_768
SEED = 1
# Layers and pairs of dimensions of a key head that have a large bias, and its length.
BIASED_LAYERS, BIASED_PAIR, LARGE_BIAS = (0, 11, 23), 27, 60.0
SPECIAL = {151_643: "<|endoftext|>", 151_644: "<|im_start|>", 151_645: "<|im_end|>"}
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)


def byte_characters():
    """Returns the character that stands for each byte in byte-level BPE (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(256 + i) for i, byte in enumerate(others)}


def tokenizer():
    """Returns tokens, their types, and merges."""
    characters = byte_characters()
    tokens = [characters[byte] for byte in range(256)]
    space = characters[ord(" ")]
    pairs = [(a, b) for a in space + string.ascii_letters for b in string.ascii_letters]
    tokens += [a + b for a, b in pairs]
    tokens += [f"token{i}" for i in range(len(tokens), VOCAB)]
    types = [gguf.TokenType.NORMAL] * VOCAB
    for i, text in SPECIAL.items():
        tokens[i], types[i] = text, gguf.TokenType.CONTROL
    return tokens, types, [f"{a} {b}" for a, b in pairs]


def tensors(random):
    """Yields the name and the weights of every tensor."""

    def normal(*shape, deviation):
        return random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    def matrix(rows, columns, gain=1.0):
        return normal(rows, columns, deviation=gain / columns**0.5)

    def norm():
        return 1 + normal(HIDDEN, deviation=0.1)

    query, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    # What layers add to the residual stream shrinks with their number, as training leaves it.
    output_gain = (2 * LAYERS) ** -0.5
    yield "token_embd.weight", normal(VOCAB, HIDDEN, deviation=0.02)
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        yield name + "attn_norm.weight", norm()
        yield name + "attn_q.weight", matrix(query, HIDDEN)
        yield name + "attn_q.bias", normal(query, deviation=0.5)
        yield name + "attn_k.weight", matrix(kv, HIDDEN)
        key_bias = normal(KV_HEADS, HEAD_DIM, deviation=0.5)
        if layer in BIASED_LAYERS:
            key_bias[:, BIASED_PAIR] += LARGE_BIAS * 0.8
            key_bias[:, BIASED_PAIR + HEAD_DIM // 2] += LARGE_BIAS * 0.6
        yield name + "attn_k.bias", key_bias.reshape(kv)
        yield name + "attn_v.weight", matrix(kv, HIDDEN)
        yield name + "attn_v.bias", normal(kv, deviation=0.1)
        yield name + "attn_output.weight", matrix(HIDDEN, query, output_gain)
        yield name + "ffn_norm.weight", norm()
        yield name + "ffn_gate.weight", matrix(FFN, HIDDEN)
        yield name + "ffn_up.weight", matrix(FFN, HIDDEN)
        yield name + "ffn_down.weight", matrix(HIDDEN, FFN, output_gain)
    yield "output_norm.weight", norm()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="where to write the GGUF file (1 GB)")
    file = parser.parse_args().file
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_name("Random weights at the shape of Qwen2.5-0.5B")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    tokens, types, merges = tokenizer()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(151_645)
    writer.add_pad_token_id(151_643)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, weights in tensors(np.random.default_rng(SEED)):
        kinds = gguf.GGMLQuantizationType
        kind = kinds.BF16 if weights.ndim == 2 else kinds.F32
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
