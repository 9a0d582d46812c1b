"""The official client asks for embeddings and for log probabilities of prompts:
python openai_embeddings.py BASE_URL.

Every step asserts what a program written for OpenAI's API relies on, or an evaluation harness.
"""

import base64
import math
import struct
import sys
import threading

from openai import BadRequestError, OpenAI

# The client's own retries would hide failures.
client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=300)
MODEL = client.models.list().data[0].id
TEXTS = [
    "The cat sat on the mat.",
    "A kitten was sitting on the rug.",
    "Interest rates rose by half a percent in March.",
]


def vectors(texts, **options) -> list[list[float]]:
    answer = client.embeddings.create(model=MODEL, input=texts, **options)
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0, answer.usage
    return [item.embedding for item in answer.data]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def check_vectors() -> list[list[float]]:
    # Left to itself, the client asks for base64 and decodes it.
    by_default = vectors(TEXTS)
    for vector in by_default:
        assert abs(math.sqrt(dot(vector, vector)) - 1) < 1e-5
    assert dot(by_default[0], by_default[1]) > dot(by_default[0], by_default[2]), "no meaning"
    floats = vectors(TEXTS, encoding_format="float")
    as_f32 = [list(struct.unpack(f"<{len(v)}f", struct.pack(f"<{len(v)}f", *v))) for v in floats]
    assert as_f32 == by_default, "the formats differ"
    raw = client.embeddings.with_raw_response.create(
        model=MODEL, input=TEXTS[0], encoding_format="base64"
    ).http_response.json()
    decoded = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(decoded) // 4}f", decoded)) == by_default[0]
    (short,) = vectors(TEXTS[0], dimensions=64)
    assert len(short) == 64 and abs(dot(short, short) - 1) < 1e-5
    return by_default


def check_exactness(alone: list[list[float]]) -> None:
    """The same text gives the same vector among others, and while others are served."""
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        many = vectors([text for text in TEXTS for _ in range(8)] + ["word " * 700])
        one_by_one = [vectors(text)[0] for text in TEXTS]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for i, vector in enumerate(alone):
        assert one_by_one[i] == vector and all(v == vector for v in many[8 * i : 8 * (i + 1)])


def check_errors() -> None:
    for options, param, code in [
        ({"input": ""}, "input", "invalid_value"),
        ({"input": ["word " * 9000]}, "input", "context_length_exceeded"),
        ({"input": "a", "dimensions": 100_000}, "dimensions", "invalid_value"),
    ]:
        try:
            client.embeddings.create(model=MODEL, **options)
        except BadRequestError as error:
            assert (error.param, error.code) == (param, code), error
        else:
            raise AssertionError(f"{options} must be refused")


def check_prompt_logprobs() -> None:
    """What evaluation harnesses ask: how likely is a continuation, and is it the likeliest one?"""
    text = "The capital of France is Paris. The capital of Italy is Rome."
    options = {"model": MODEL, "temperature": 0, "echo": True, "logprobs": 1}
    scored = client.completions.create(prompt=text, max_tokens=0, **options).choices[0]
    assert (scored.text, scored.finish_reason) == (text, "length"), scored
    logprobs = scored.logprobs
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert "".join(logprobs.tokens) == text
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert text[offset : offset + len(token)] == token, logprobs
    # With an output, in a cache that has seen the prompt, and as a stream.
    longer = client.completions.create(prompt=text, max_tokens=1, **options).choices[0]
    assert longer.logprobs.token_logprobs[:-1] == logprobs.token_logprobs
    chunks = list(client.completions.create(prompt=text, max_tokens=1, stream=True, **options))
    assert chunks[0].choices[0].logprobs.token_logprobs == logprobs.token_logprobs
    # What is generated has the log probabilities of the same text as a prompt.
    own = client.completions.create(
        model=MODEL, prompt=text, max_tokens=8, temperature=0, logprobs=1
    ).choices[0]
    both = client.completions.create(prompt=text + own.text, max_tokens=0, **options).choices[0]
    assert both.logprobs.token_logprobs[-8:] == own.logprobs.token_logprobs, (both, own)


check_exactness(check_vectors())
check_errors()
check_prompt_logprobs()
