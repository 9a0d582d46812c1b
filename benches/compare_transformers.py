#!/usr/bin/env python3
"""Compares the running server with transformers at the true shapes of models, on random weights.

For each shape a checkpoint folder with seeded bf16 weights is written and served, and prompts whose
lengths cross the borders of blocks and chunks are sent as token ids, all in one request. Every
step's 20 most likely tokens are compared with transformers, which computes prompt and answer of the
same weights in float32: log probabilities within a tolerance, and the greedy token where the gap to
the next one exceeds it. With keys and values stored as f32 the tolerance is what sums in another
order make of a model of this depth; as they are stored by default it is how far transformers itself
is off when it computes in the checkpoint's own bf16.

Measured on the way: seconds until the server is ready, and its resident memory, anonymous and of
mapped files apart, against the bytes of the weights plus those of the KV in use. A peak above that
by more than the limit, or a wrong answer, fails the run.

Needs torch and transformers.

    cargo build --release
    python3 benches/compare_transformers.py --record benches/record/NAME
"""

import argparse
import dataclasses
import datetime
import http.client
import json
import pathlib
import re
import shutil
import tempfile

import torch
import transformers

import random_checkpoint
from measured_server import ROOT, Contender, Server, machine, output_of, sha256
from memory_watch import MemoryWatch

# Around the borders of blocks (16 tokens) and of chunks (512), and over several of both.
PROMPT_LENGTHS = (1, 15, 16, 17, 100, 511, 512, 513, 1100)
NUM_OUTPUT = 6
NUM_TOP = 20  # the most that the API gives
TOLERANCE_WITH_F32_KV = 1e-3
MEMORY_LIMIT_BYTES = 300 << 20  # beside weights and KV in use
REQUEST_TIMEOUT_S = 1200


def prompts(vocab_size, seed):
    """Returns seeded prompts of all lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        for length in PROMPT_LENGTHS
    ]


class WatchedServer(Server):
    """A server whose memory is watched from its start on."""

    def _wait_until_ready(self, deadline):
        self.memory = MemoryWatch(self)
        self.memory.thread.start()
        super()._wait_until_ready(deadline)

    def __exit__(self, *exception):
        self.memory.is_done = True
        self.memory.thread.join()
        super().__exit__(*exception)

    def request(self, method, path, body=None):
        """Returns the JSON response to a request that must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_TIMEOUT_S)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request(method, path, body and json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {text!r}")
        return json.loads(text)


@dataclasses.dataclass(frozen=True)
class Step:
    """A generated token, and the most likely ones in its place with their log probabilities."""

    token: int
    top: dict


def ask(server, sent):
    """Returns the greedy choices for all prompts, which are sent as one request."""
    body = {"prompt": sent, "max_tokens": NUM_OUTPUT, "temperature": 0, "logprobs": NUM_TOP}
    choices = server.request("POST", "/v1/completions", body | {"ignore_eos": True})["choices"]
    return sorted(choices, key=lambda choice: choice["index"])


def steps_of(choice):
    """Returns the steps of a choice; only the synthetic tokenizer tells tokens by their texts."""
    logprobs = choice["logprobs"]
    id_of = lambda text: int(re.fullmatch(r"<(\d+)>", text)[1])
    pairs = zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
    return [
        Step(id_of(text), {id_of(other): value for other, value in top.items()})
        for text, top in pairs
    ]


@torch.inference_mode()
def reference(model, sent, answers):
    """Returns what transformers says for every step, `[num_steps, vocab_size]` for each prompt."""
    rows = []
    for prompt, answer in zip(sent, answers, strict=True):
        known = prompt + [step.token for step in answer[:-1]]
        logits = model(torch.tensor([known]), logits_to_keep=len(answer)).logits[0]
        rows.append(logits.float().log_softmax(-1))
    return rows


def largest_difference(rows, others):
    """Returns the largest difference among each step's most likely tokens."""
    differences = []
    for row, other in zip(torch.cat(rows), torch.cat(others), strict=True):
        top = row.topk(NUM_TOP).indices
        differences.append((row[top] - other[top]).abs().max().item())
    return max(differences)


def compare(sent, answers, expected, tolerance):
    """Returns the largest differences; ends the run where one exceeds the tolerance."""
    worst, num_values, num_clear = 0.0, 0, 0
    wrong = []
    for prompt, answer, rows in zip(sent, answers, expected, strict=True):
        for number, (step, row) in enumerate(zip(answer, rows, strict=True)):
            where = f"{len(prompt)} tokens, step {number}"
            if len(step.top) != NUM_TOP:
                wrong.append(f"{where}: {len(step.top)} tokens instead of {NUM_TOP}")
            for token, value in step.top.items():
                difference = abs(value - row[token].item())
                worst, num_values = max(worst, difference), num_values + 1
                if difference > tolerance:
                    wrong.append(f"{where}, token {token}: {value}, not {row[token].item()}")
            first, second = row.topk(2).values.tolist()
            is_clear = first - second > tolerance
            num_clear += is_clear
            if is_clear and step.token != row.argmax().item():
                wrong.append(f"{where}: token {step.token}, not {row.argmax().item()}")
            # What is not among the first may be as likely as the last of them, not more.
            missed = row.topk(NUM_TOP).values[-1].item() - min(step.top.values())
            if missed > tolerance:
                wrong.append(f"{where}: a token that is more likely by {missed} is missing")
    if wrong:
        raise SystemExit("\n".join(wrong[:20]))
    return {
        "log_probabilities": num_values,
        "tolerance": tolerance,
        "largest_difference": worst,
        "greedy_steps_with_a_clear_winner": num_clear,
    }


def serve(args, folder, sent, log, *flags):
    """Serves a folder once; returns the choices, and time and memory that it took."""
    command = [args.binary, "serve", "--model", folder, "--port", "{port}", *flags]
    with WatchedServer(Contender(folder.name, list(map(str, command)), {}), log) as server:
        ready = server.memory.now()
        while_loading = {"highest": server.memory.highest(), **server.memory.peaks}
        choices = ask(server, sent)
        kv = server.request("GET", "/v1/kv")
        at_rest = server.memory.now()
        highest = server.memory.highest()
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    kv_bytes = kv["block_bytes"] * (kv["blocks"]["active"] + kv["blocks"]["cached"])
    return choices, {
        "ready_s": server.ready_s,
        "checkpoint_bytes": stored,
        "checkpoint_bytes_per_s": stored / server.ready_s,
        "bytes_when_ready": ready,
        "peak_bytes_while_loading": while_loading,
        "bytes_after_the_answers": at_rest,
        "peak_bytes": highest,
        "kv_bytes_in_use": kv_bytes,
        "peak_beside_weights_and_kv": highest - stored - kv_bytes,
    }


def measure(args, folder, sent, log):
    """Returns the choices and what each of several starts took; the memory must be within bounds."""
    starts = []
    for _ in range(args.starts):
        choices, taken = serve(args, folder, sent, log)
        starts.append(taken)
        print(
            f"{folder.name}: ready in {taken['ready_s']:.2f} s "
            f"({taken['checkpoint_bytes_per_s'] / 1e9:.2f} GB/s), peak "
            f"{taken['peak_bytes'] >> 20} MiB, "
            f"{taken['peak_beside_weights_and_kv'] >> 20} MiB beside weights and KV",
            flush=True,
        )
        if taken["peak_beside_weights_and_kv"] > MEMORY_LIMIT_BYTES:
            raise SystemExit(f"more than {MEMORY_LIMIT_BYTES >> 20} MiB beside weights and KV")
    return choices, starts


def check_shape(args, name, config, folder, log):
    """Compares one model; returns its part of the record."""
    if not folder.exists():
        random_checkpoint.write(config, folder, args.seed)
    sent = prompts(config.vocab_size, args.seed)
    choices, starts = measure(args, folder, sent, log)
    answers = [steps_of(choice) for choice in choices]
    exact_choices, _ = serve(args, folder, sent, log, "--kv-cache-dtype", "f32")
    exact_answers = [steps_of(choice) for choice in exact_choices]
    load = lambda dtype: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model = load(torch.float32)
    expected = reference(model, sent, answers)
    exact = compare(sent, exact_answers, reference(model, sent, exact_answers), TOLERANCE_WITH_F32_KV)
    tolerance = largest_difference(expected, reference(load(torch.bfloat16), sent, answers))
    compared = {
        "with_f32_kv": exact,
        "with_kv_of_the_default_type": compare(sent, answers, expected, tolerance),
    }
    print(f"{name}: {compared}", flush=True)
    found = {"config": json.loads((folder / "config.json").read_text()), "compared": compared}
    found["starts"] = starts
    tokenizer = args.tokenizer.get(name)
    if tokenizer:
        for file in tokenizer.glob("tokenizer*.json"):
            shutil.copy(file, folder)
        found["starts_with_a_real_tokenizer"] = measure(args, folder, sent, log)[1]
    random_checkpoint.write_tokenizer(config, folder)
    return found


def named_folder(text):
    name, _, folder = text.partition("=")
    if not (pathlib.Path(folder) / "tokenizer.json").is_file():
        raise argparse.ArgumentTypeError(f"{folder!r} has no tokenizer.json")
    return name, pathlib.Path(folder)


def main():
    shapes = random_checkpoint.shapes()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--shapes", nargs="+", choices=shapes, default=list(shapes))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--starts", type=int, default=3, help="times that each model is served")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/mini-infer")
    parser.add_argument("--checkpoints", type=pathlib.Path, help="folder to keep the models in")
    parser.add_argument(
        "--tokenizer",
        type=named_folder,
        action="append",
        default=[],
        metavar="SHAPE=FOLDER",
        help="measure time and memory with this tokenizer as well",
    )
    parser.add_argument("--record", type=pathlib.Path, help="FILE.json")
    args = parser.parse_args()
    args.tokenizer = dict(args.tokenizer)
    record = {
        "date": datetime.date.today().isoformat(),
        "commit": output_of(["git", "rev-parse", "--short", "HEAD"]),
        "binary_sha256": sha256(args.binary),
        "machine": machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seed": args.seed,
        "prompt_lengths": PROMPT_LENGTHS,
        "output_tokens": NUM_OUTPUT,
        "models": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        parent = args.checkpoints or pathlib.Path(temporary)
        with open(pathlib.Path(temporary) / "server.log", "w") as log:
            for name in args.shapes:
                found = check_shape(args, name, shapes[name], parent / name, log)
                record["models"][name] = found
    if args.record:
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
