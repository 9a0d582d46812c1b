"""The official client's tour of a server: python openai_tour.py BASE_URL.

Every step asserts what a program written for OpenAI's API relies on.
"""

import asyncio
import sys

from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

BASE_URL = sys.argv[1]
# The client's own retries would hide failures.
OPTIONS = {"base_url": BASE_URL, "api_key": "none", "max_retries": 0, "timeout": 300}
QUESTION = [{"role": "user", "content": "Name three colors."}]

client = OpenAI(**OPTIONS)


def check_models() -> str:
    models = client.models.list().data
    assert len(models) == 1, models
    model = models[0].id
    assert client.models.retrieve(model).id == model
    return model


def check_chat(model: str) -> None:
    whole = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_completion_tokens=60
    )
    message = whole.choices[0].message
    assert message.role == "assistant" and "Blue" in message.content, whole
    assert whole.choices[0].finish_reason == "stop", whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_completion_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == message.content, text
    assert [c.usage for c in chunks if c.usage] == [chunks[-1].usage]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].choices == []


def check_completions(model: str) -> None:
    options = {"model": model, "prompt": "1, 2, 3, 4, 5, 6,", "temperature": 0, "max_tokens": 40}
    whole = client.completions.create(**options, stop=["9, 10"])
    assert whole.choices[0].text == " 7, 8, ", whole
    assert whole.choices[0].finish_reason == "stop", whole
    stream = client.completions.create(**options, stop=["9, 10"], stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    capped = client.completions.create(**options | {"max_tokens": 3})
    assert capped.choices[0].finish_reason == "length" and capped.usage.completion_tokens == 3
    ids = client.completions.create(model=model, prompt=[[100, 200], [300]], max_tokens=1)
    assert [choice.index for choice in ids.choices] == [0, 1] and ids.usage.prompt_tokens == 3


def check_sampling(model: str) -> None:
    def sample(**options):
        return client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=16, **options
        ).choices

    first, second = (sample(n=3, seed=11, temperature=1.2) for _ in range(2))
    assert [c.index for c in first] == [0, 1, 2]
    assert [c.message.content for c in first] == [c.message.content for c in second]
    choice = sample(logprobs=True, top_logprobs=3, temperature=0, top_p=0.9)[0]
    tokens = choice.logprobs.content
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in tokens)
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    text = client.completions.create(
        model=model, prompt="Once", max_tokens=4, temperature=0, logprobs=2
    )
    logprobs = text.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    assert "".join(logprobs.tokens) == text.choices[0].text


def check_error(kind: type, param: str | None, code: str, call) -> None:
    try:
        call()
    except kind as error:
        assert (error.param, error.code) == (param, code), error
    else:
        raise AssertionError(f"{kind.__name__} with {code} expected")


def check_errors(model: str) -> None:
    def ask(**options):
        request = {"model": model, "messages": QUESTION} | options
        return lambda: client.chat.completions.create(**request)

    too_long = [{"role": "user", "content": "word " * 9000}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    check_error(BadRequestError, "temperature", "invalid_value", ask(temperature=9))
    check_error(BadRequestError, "messages", "invalid_value", ask(messages=[]))
    check_error(BadRequestError, "messages", "context_length_exceeded", ask(messages=too_long))
    check_error(BadRequestError, "tools", "unsupported_parameter", ask(tools=[tool]))
    check_error(BadRequestError, "best", "unknown_parameter", ask(extra_body={"best": 1}))
    check_error(NotFoundError, "model", "model_not_found", ask(model="gpt-4"))
    check_error(BadRequestError, "temperature", "invalid_value", ask(temperature=9, stream=True))


async def check_concurrent_streams(model: str) -> None:
    animals = ["cat", "dog", "horse", "whale", "eagle", "spider", "snake", "bee"]
    async with AsyncOpenAI(**OPTIONS) as asynchronous:

        async def ask(animal: str) -> str:
            stream = await asynchronous.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"Write one sentence about a {animal}."}],
                temperature=0,
                max_tokens=24,
                stream=True,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        alone = [await ask(animal) for animal in animals]
        together = await asyncio.gather(*map(ask, animals))
    assert alone == list(together), list(zip(alone, together))
    assert len(set(alone)) == len(animals), alone


def main() -> None:
    model = check_models()
    check_chat(model)
    check_completions(model)
    check_sampling(model)
    check_errors(model)
    asyncio.run(check_concurrent_streams(model))


main()
