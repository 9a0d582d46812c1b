"""Compares token ids with `tokenizers` on all torture texts, for whole published vocabularies.

    pip install tokenizers sentencepiece protobuf
    python compare_tokenizers.py FOLDER...

Each FOLDER holds a `tokenizer.json`. Our ids come from the example `token_ids` of this crate. Texts
with the unknown token's text are skipped: the reference takes it for the token. Prints how many
texts differ and the first of them, and exits with 1 if any does.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

from make_fixtures import HERE, MARKUP_TEXTS, TEXTS
from make_vocabularies import MARKUP_TEXTS as MORE_MARKUP_TEXTS


def our_ids(path, texts):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(texts, file)
        file.flush()
        command = ["cargo", "run", "--quiet", "-p", "mini-infer-text", "--example", "token_ids",
                   "--", str(path), file.name]
        lines = subprocess.run(
            command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line)["markup"] for line in lines.split("\n") if line]


def main():
    texts = [text for text in TEXTS + MARKUP_TEXTS + MORE_MARKUP_TEXTS if "<unk>" not in text]
    num_different = 0
    for folder in sys.argv[1:]:
        path = pathlib.Path(folder).resolve() / "tokenizer.json"
        reference = Tokenizer.from_file(str(path))
        begin = reference.encode("").ids
        different = []
        for text, ours in zip(texts, our_ids(path, texts)):
            theirs = reference.encode(text).ids
            # The reference adds BOS also to a text that begins with it; we never do.
            if theirs != ours and theirs != begin + ours:
                different.append((text, ours, theirs))
        print(f"{folder}: {len(different)} of {len(texts)} texts differ")
        for text, ours, theirs in different[:1]:
            print(f"  {text!r}\n  ours   {ours}\n  theirs {theirs}")
        num_different += len(different)
    sys.exit(num_different > 0)


if __name__ == "__main__":
    main()
