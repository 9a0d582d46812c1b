"""The official client's tour of a server: python openai_tour.py BASE_URL.

Every step asserts what a program written for OpenAI's API relies on.
"""

import asyncio
import sys
import uuid
from typing import Literal

from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, Field

BASE_URL = sys.argv[1]
# The client's own retries would hide failures.
OPTIONS = {"base_url": BASE_URL, "api_key": "none", "max_retries": 0, "timeout": 300}
QUESTION = [{"role": "user", "content": "Name three colors."}]

client = OpenAI(**OPTIONS)


def check_form(*answers: BaseModel) -> None:
    """Checks that answers have every field that their type requires: the client itself lets pass
    what has not."""
    for answer in answers:
        type(answer).model_validate(answer.to_dict())


def check_models() -> str:
    models = client.models.list().data
    assert len(models) == 1, models
    model = models[0].id
    assert client.models.retrieve(model).id == model
    check_form(*models)
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
    check_form(whole, *chunks)


def check_completions(model: str) -> None:
    options = {"model": model, "prompt": "1, 2, 3, 4, 5, 6,", "temperature": 0, "max_tokens": 40}
    whole = client.completions.create(**options, stop=["9, 10"])
    assert whole.choices[0].text == " 7, 8, ", whole
    assert whole.choices[0].finish_reason == "stop", whole
    stream = client.completions.create(**options, stop=["9, 10"], stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    capped = client.completions.create(**options | {"max_tokens": 3})
    assert capped.choices[0].finish_reason == "length" and capped.usage.completion_tokens == 3
    check_form(whole, capped)
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


def check_searches(model: str) -> None:
    def ask(**options):
        return client.completions.create(
            model=model, prompt="The capital of France is", max_tokens=8, **options
        )

    def score(choice) -> float:
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.tokens)

    best = ask(best_of=4, n=2, seed=7, logprobs=0, extra_body={"ignore_eos": True})
    assert [c.index for c in best.choices] == [0, 1] and best.usage.completion_tokens == 32, best
    assert score(best.choices[0]) >= score(best.choices[1]), best
    beams = {"use_beam_search": True, "length_penalty": 1.0}
    first, second = (
        ask(best_of=4, n=2, temperature=0, logprobs=0, extra_body=beams) for _ in range(2)
    )
    assert [c.text for c in first.choices] == [c.text for c in second.choices], (first, second)
    assert first.choices[0].text != first.choices[1].text, first
    greedy = ask(temperature=0, logprobs=0)
    likelihood = sum(first.choices[0].logprobs.token_logprobs)
    assert likelihood >= sum(greedy.choices[0].logprobs.token_logprobs), (first, greedy)


def check_prefix_cache(model: str) -> None:
    prompt = "Numbers that were counted before: " + ", ".join(map(str, range(60)))

    def ask(text: str, **fields):
        answer = client.completions.create(
            model=model, prompt=text, max_tokens=4, temperature=0, extra_body=fields
        )
        return answer.usage.prompt_tokens_details.cached_tokens, answer

    # A salt of its own keeps earlier runs of this script out.
    salt = {"cache_salt": str(uuid.uuid4())}
    cold, first = ask(prompt, **salt)
    warm, second = ask(prompt, **salt)
    assert (cold, warm) == (0, first.usage.prompt_tokens - 1), (first, second)
    assert first.choices[0].text == second.choices[0].text
    edited, _ = ask(prompt.replace("42", "x"), **salt)
    assert 0 < edited < warm, edited
    assert ask(prompt, cache_salt=str(uuid.uuid4()))[0] == 0
    assert ask(prompt, **salt, cache_prompt=False)[0] == 0


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
    check_error(BadRequestError, "tools", "invalid_value", ask(tools=[tool]))
    check_error(BadRequestError, "best", "unknown_parameter", ask(extra_body={"best": 1}))
    check_error(BadRequestError, "cache_salt", "invalid_value", ask(extra_body={"cache_salt": ""}))
    check_error(BadRequestError, "best_of", "unknown_parameter", ask(extra_body={"best_of": 2}))
    check_error(NotFoundError, "model", "model_not_found", ask(model="gpt-4"))
    check_error(BadRequestError, "temperature", "invalid_value", ask(temperature=9, stream=True))


class Color(BaseModel):
    name: Literal["red", "green", "blue", "yellow"]
    warm: bool
    likes: int = Field(ge=0, le=99)


class Palette(BaseModel):
    first: Color
    second: Color | None


def check_structured_output(model: str) -> None:
    ask = {"model": model, "messages": QUESTION, "temperature": 1, "seed": 7, "max_tokens": 300}
    parsed = client.chat.completions.parse(**ask, response_format=Palette, n=3)
    for choice in parsed.choices:
        assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Palette), choice
    with client.chat.completions.stream(**ask, response_format=Palette) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed, final
    one = client.chat.completions.create(**ask, extra_body={"guided_choice": ["left", "right"]})
    assert one.choices[0].message.content in ["left", "right"], one
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    place = "response_format.json_schema.schema.properties.a.not"
    refused = lambda: client.chat.completions.create(**ask, response_format=wrong)
    check_error(BadRequestError, place, "invalid_value", refused)


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
    check_searches(model)
    check_prefix_cache(model)
    check_structured_output(model)
    check_errors(model)
    asyncio.run(check_concurrent_streams(model))


main()
