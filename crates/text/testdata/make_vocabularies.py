"""Makes `tokenizers/NAME.json`: the ids that published tokenizers give.

    pip install tokenizers sentencepiece protobuf
    python make_vocabularies.py TOKENIZERS

TOKENIZERS is a folder of `NAME/tokenizer.json` files, one for each name in `MARKUP`. Their
vocabularies are too large to keep, so each is cut down to the tokens that it uses on `WORDS`, the
tokens that those are merged from, and those in `MARKUP`; normalizer, pre-tokenizer, post-processor,
decoder and flags stay as published. The ids of all torture texts are then what `tokenizers` gives
with the small vocabulary.
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer

from make_fixtures import HERE, TEXTS

# Texts whose tokens stay in the vocabularies.
WORDS = [
    "The quick brown fox jumps over the lazy dog. I'm you're DON'T ''quoted''",
    "two  spaces   three    four\n\n\nlines\r\n\r\n\tand\t\ttabs        eight",
    "1234567890 12 345 6,789.01 ½ १२३",
    "café naïve Привет, мир! 你好，世界！日本語のテキスト 한국어 नमस्ते สวัสดี مرحبا",
    "def f(x, *args):\n    return {k: v for k in x if k != '__init__'}  # https://example.com/a?b=c",
    "HTTPServer camelCase <h1>Title</h1> 😀 👩\u200d👩\u200d👧",
]

MARKUP = {
    "deepseek_v3": ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
                    "<think>", "</think>"],
    "gemma3": ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\n\n",
               "▁▁", "▁▁▁", "▁▁▁▁▁▁▁▁", "<h1>", "</h1>", "<image_soft_token>"],
    "gptoss": ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|endoftext|>"],
    "llama2": ["<unk>", "<s>", "</s>"],
    "llama3_1": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                 "<|eot_id|>"],
    "qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"],
}

MARKUP_TEXTS = [
    "<|im_start|>user\n Hi  there<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "[INST] Hi [/INST] yes</s>[INST] more [/INST]",
    "<｜User｜>Hi<｜Assistant｜></think>yes<｜end▁of▁sentence｜>",
    "<|start|>user<|message|>Hi<|end|><|start|>assistant",
]


def pair(merge):
    return tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge)


def used(vocab, merges, encode, kept):
    """Returns the tokens to keep: single bytes, those in use, and what they are merged from."""
    made_from = {}
    for left, right in merges:
        made_from.setdefault(left + right, []).append((left, right))
    tokens = {token for token in vocab if len(token) == 1 and token < "\u0180"}
    tokens |= {f"<0x{byte:02X}>" for byte in range(256)} & vocab.keys()
    tokens |= {token for token in kept if token in vocab}
    waiting = [token for text in WORDS for token in encode(text)]
    while waiting:
        token = waiting.pop()
        if token in tokens:
            continue
        tokens.add(token)
        # One way to make a token is enough: the first, which the merging prefers.
        waiting.extend(made_from.get(token, [()])[0])
    return tokens


def cut_down(published, kept):
    """Returns a tokenizer with the same rules and far fewer tokens."""
    model = published["model"]
    merges = [pair(merge) for merge in model["merges"]]
    full = Tokenizer.from_str(json.dumps(published))
    tokens = used(model["vocab"], merges, lambda text: full.encode(text).tokens, kept)
    added = [token for token in published["added_tokens"] if token["content"] in kept]
    ordered = sorted(tokens & model["vocab"].keys(), key=model["vocab"].get)
    vocab = {token: id for id, token in enumerate(ordered)}
    next_id = len(vocab)
    for token in added:
        if token["content"] in vocab:
            token["id"] = vocab[token["content"]]
        else:
            token["id"], next_id = next_id, next_id + 1
    small_merges = [
        merge for merge, (left, right) in zip(model["merges"], merges)
        if left in vocab and right in vocab and left + right in vocab]
    renumber(published["post_processor"], {token["content"]: token["id"] for token in added})
    return dict(
        published, added_tokens=added, model=dict(model, vocab=vocab, merges=small_merges))


def renumber(processor, ids):
    """Gives the special tokens that a post-processor names their new ids."""
    for part in processor.get("processors", [processor]):
        for special in part.get("special_tokens", {}).values():
            special["ids"] = [ids[token] for token in special["tokens"]]


def main():
    texts = TEXTS + MARKUP_TEXTS
    for name, kept in MARKUP.items():
        path = pathlib.Path(sys.argv[1]) / name / "tokenizer.json"
        small = cut_down(json.loads(path.read_text()), kept)
        tokenizer = Tokenizer.from_str(json.dumps(small))
        ids = [tokenizer.encode(text).ids for text in texts]
        fixture = {"json": small, "texts": texts, "ids": ids}
        text = json.dumps(fixture, ensure_ascii=True, separators=(",", ":"))
        (HERE / "tokenizers" / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
