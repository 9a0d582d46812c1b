"""LiteLLM's tour of a server: python litellm_tour.py ADDRESS TOOLS_ADDRESS.

The same requests go through its providers `openai`, `hosted_vllm` and `anthropic`, and must come
to the same. The second server's chat template shows the model by example how to call
`get_weather`, so that what it does is known.
"""

import asyncio
import json
import os
import sys

# Prices that nobody asks for are not fetched, nor is anything told to anybody.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402

ADDRESS, TOOLS_ADDRESS = sys.argv[1:]
MODEL = "smollm2-135m"
PROVIDERS = ["openai", "hosted_vllm", "anthropic"]
QUESTION = [{"role": "user", "content": "Name three colors."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
COLOR = {
    "type": "object",
    "properties": {"name": {"enum": ["red", "green", "blue"]}, "warm": {"type": "boolean"}},
    "required": ["name", "warm"],
    "additionalProperties": False,
}
litellm.telemetry = False
litellm.suppress_debug_info = True


def options(provider: str, messages: list, address: str = ADDRESS, **more) -> dict:
    path = "" if provider == "anthropic" else "/v1"
    base = {"model": f"{provider}/{MODEL}", "api_base": f"http://{address}{path}"}
    # The client's own retries would hide failures.
    base |= {"api_key": "none", "max_retries": 0, "num_retries": 0, "timeout": 300}
    return base | {"messages": messages, "temperature": 0, "max_tokens": 60} | more


def check_answers(provider: str) -> tuple:
    whole = litellm.completion(**options(provider, QUESTION))
    [choice] = whole.choices
    assert "Blue" in choice.message.content and choice.finish_reason == "stop", whole
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, whole
    stream = litellm.completion(
        **options(provider, QUESTION, stream=True, stream_options={"include_usage": True})
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content, chunks
    told = [getattr(chunk, "usage", None) for chunk in chunks]
    [told] = [usage for usage in told if usage]
    assert told.completion_tokens == usage.completion_tokens, (told, usage)
    assert told.prompt_tokens == usage.prompt_tokens, (told, usage)
    rebuilt = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert rebuilt.choices[0].message.content == text, rebuilt
    assert rebuilt.choices[0].finish_reason == "stop", rebuilt
    return text, usage.prompt_tokens, usage.completion_tokens


def check_conversations(provider: str) -> str:
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": [{"type": "text", "text": "Who are you?"}]},
        {"role": "assistant", "content": "A pirate."},
        {"role": "user", "content": "Count: 1, 2, 3, 4,"},
    ]
    answer = litellm.completion(**options(provider, messages, stop=["7"], top_p=0.9))
    capped = litellm.completion(**options(provider, messages, max_tokens=2))
    assert capped.choices[0].finish_reason == "length", capped
    assert "7" not in answer.choices[0].message.content, answer
    return answer.choices[0].message.content


def calls_of(message) -> list:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls]


def check_tools(provider: str) -> None:
    def ask(messages: list, **more):
        more = {"tools": TOOLS, "parallel_tool_calls": False} | more
        return litellm.completion(**options(provider, messages, TOOLS_ADDRESS, **more))

    asked = [{"role": "user", "content": "Weather in Paris?"}]
    paris = [("get_weather", {"city": "Paris"})]
    whole = ask(asked, tool_choice="auto").choices[0]
    assert calls_of(whole.message) == paris and whole.finish_reason == "tool_calls", whole
    chunks = list(ask(asked, tool_choice="auto", stream=True))
    streamed = litellm.stream_chunk_builder(chunks, messages=asked).choices[0]
    assert calls_of(streamed.message) == paris, streamed
    assert streamed.finish_reason == "tool_calls", streamed
    result = {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "Sunny."}
    history = [*asked, whole.message, result, {"role": "user", "content": "Weather in Berlin?"}]
    second = ask(history, tool_choice="auto").choices[0]
    assert calls_of(second.message) == [("get_weather", {"city": "Berlin"})], second
    # Calls on demand, where nothing suggests one.
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ["required", named]:
        greeting = [{"role": "user", "content": "Say hello to Paris."}]
        [(name, arguments)] = calls_of(ask(greeting, tool_choice=choice).choices[0].message)
        assert name == "get_weather" and list(arguments) == ["city"], (name, arguments)


def check_structured_output(provider: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "color", "schema": COLOR}}
    more = {"response_format": schema, "max_tokens": 100}
    answer = litellm.completion(**options(provider, QUESTION, TOOLS_ADDRESS, **more)).choices[0]
    color = json.loads(answer.message.content)
    assert list(color) == ["name", "warm"] and answer.finish_reason == "stop", answer
    more["stream"] = True
    chunks = list(litellm.completion(**options(provider, QUESTION, TOOLS_ADDRESS, **more)))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert json.loads(text) == color, chunks


def check_error(kind: type, text: str, call: dict) -> None:
    try:
        litellm.completion(**call)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{kind.__name__} expected")


def check_errors(provider: str) -> None:
    too_long = [{"role": "user", "content": "word " * 9000}]
    check_error(litellm.ContextWindowExceededError, "8192", options(provider, too_long))
    check_error(litellm.BadRequestError, "top_p", options(provider, QUESTION, top_p=7))
    call = options(provider, QUESTION, stream=True, top_p=7)
    check_error(litellm.BadRequestError, "top_p", call)
    call = options(provider, QUESTION) | {"model": f"{provider}/gpt-4"}
    check_error(litellm.NotFoundError, "gpt-4", call)


async def check_concurrent_streams(provider: str) -> None:
    async def ask(animal: str) -> str:
        messages = [{"role": "user", "content": f"Write one sentence about a {animal}."}]
        call = options(provider, messages, max_tokens=16, stream=True)
        stream = await litellm.acompletion(**call)
        pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
        return "".join(pieces)

    animals = ["cat", "whale", "bee"]
    alone = [await ask(animal) for animal in animals]
    together = await asyncio.gather(*map(ask, animals))
    assert alone == list(together) and len(set(alone)) == len(animals), (alone, together)


def main() -> None:
    answers = [check_answers(provider) for provider in PROVIDERS]
    assert len(set(answers)) == 1, answers
    answers = [check_conversations(provider) for provider in PROVIDERS]
    assert len(set(answers)) == 1, answers
    for provider in PROVIDERS:
        check_tools(provider)
        check_structured_output(provider)
        check_errors(provider)
        asyncio.run(check_concurrent_streams(provider))


main()
