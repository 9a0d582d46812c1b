"""The official client's tour of Ollama's routes: python ollama_tour.py HOST MODEL [TOOLS_HOST].

Every step asserts what a program written for Ollama relies on. TOOLS_HOST is a server whose chat
template shows the model tools.
"""

import asyncio
import json
import sys

from ollama import AsyncClient, Client, ResponseError

HOST, MODEL, *REST = sys.argv[1:]
QUESTION = [{"role": "user", "content": "Name three colors."}]
GREEDY = {"temperature": 0, "num_predict": 60}

client = Client(host=HOST)


def check_models() -> None:
    listed = client.list().models
    assert [entry.model for entry in listed] == [MODEL], listed
    details = listed[0].details
    assert details.family == "llama" and details.parameter_size.endswith("M"), details
    assert listed[0].size > 50_000_000 and len(listed[0].digest) == 64, listed
    assert listed[0].modified_at.year >= 2024, listed
    shown = client.show(MODEL + ":latest")
    assert "completion" in shown.capabilities and "insert" not in shown.capabilities, shown
    assert shown.modelinfo["general.architecture"] == "llama", shown.modelinfo
    assert shown.modelinfo["llama.context_length"] == client.ps().models[0].context_length
    assert "im_start" in shown.template, shown.template


def check_numbers(answer) -> None:
    assert answer.done and answer.eval_count > 0 and answer.prompt_eval_count > 0, answer
    parts = (answer.load_duration, answer.prompt_eval_duration, answer.eval_duration)
    assert all(part > 0 for part in parts), answer
    assert answer.total_duration == sum(parts), answer


def check_chat() -> None:
    whole = client.chat(MODEL, QUESTION, options=GREEDY)
    assert whole.message.role == "assistant" and "Blue" in whole.message.content, whole
    assert whole.done_reason == "stop" and whole.model == MODEL, whole
    check_numbers(whole)
    chunks = list(client.chat(MODEL, QUESTION, options=GREEDY, stream=True))
    assert len(chunks) > 3 and [c.done for c in chunks[:-1]] == [False] * (len(chunks) - 1)
    assert "".join(c.message.content for c in chunks) == whole.message.content, chunks
    check_numbers(chunks[-1])
    assert chunks[-1].eval_count == whole.eval_count
    capped = client.chat(MODEL, QUESTION, options={"num_predict": 3})
    assert capped.done_reason == "length" and capped.eval_count == 3, capped


def check_generate() -> None:
    system = "You answer with one word."
    whole = client.generate(MODEL, "What is the capital of France?", system=system, options=GREEDY)
    assert whole.response.strip(), whole
    check_numbers(whole)
    raw = {"prompt": "1, 2, 3, 4, 5, 6,", "raw": True}
    stops = {"options": GREEDY | {"stop": ["9, 10"]}}
    chunks = list(client.generate(MODEL, **raw, **stops, stream=True))
    assert "".join(chunk.response for chunk in chunks) == " 7, 8, ", chunks
    seeded = [
        client.generate(MODEL, "Hi", options={"seed": 5, "num_predict": 16}).response
        for _ in range(2)
    ]
    assert seeded[0] == seeded[1], seeded
    assert client.generate(MODEL).done_reason == "load"


def check_format() -> None:
    schema = {
        "type": "object",
        "properties": {"color": {"enum": ["red", "blue"]}, "count": {"enum": [1, 2]}},
        "required": ["color", "count"],
        "additionalProperties": False,
    }
    options = {"temperature": 0, "num_predict": 100}
    answer = client.chat(MODEL, QUESTION, format=schema, options=options)
    parsed = json.loads(answer.message.content)
    assert parsed["color"] in ("red", "blue") and parsed["count"] in (1, 2), answer
    text = client.generate(MODEL, "Give me JSON.", format=schema, options=options).response
    assert set(json.loads(text)) == {"color", "count"}, text


def check_logprobs() -> None:
    answer = client.chat(MODEL, QUESTION, logprobs=True, top_logprobs=2, options=GREEDY)
    assert "".join(token.token for token in answer.logprobs) == answer.message.content, answer
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in answer.logprobs)


def check_refusals() -> None:
    def refused(status: int, name: str, **fields) -> None:
        try:
            client.chat(**{"model": MODEL, "messages": QUESTION} | fields)
        except ResponseError as error:
            assert error.status_code == status and name in error.error, error
        else:
            raise AssertionError(fields)

    refused(404, "nobody", model="nobody")
    refused(400, "options.temperature", options={"temperature": 9})
    refused(400, "options.mirostat", options={"mirostat": 2})
    refused(400, "think", think=True)
    try:
        client.pull("llama3.2")
    except ResponseError as error:
        assert error.status_code == 404 and "/api/pull" in error.error, error
    else:
        raise AssertionError("pulled")


async def check_async() -> None:
    stream = await AsyncClient(host=HOST).chat(MODEL, QUESTION, options=GREEDY, stream=True)
    text = "".join([chunk.message.content async for chunk in stream])
    assert "Blue" in text, text


def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
      city: The name of the city.
    """
    return f"It rains in {city}."


def check_tools(host: str) -> None:
    with_tools = Client(host=host)
    assert "tools" in with_tools.show(MODEL).capabilities
    messages = [{"role": "user", "content": "Weather in Paris?"}]
    fields = {"tools": [get_weather], "options": GREEDY | {"stop": ["\n"]}}
    for stream in (False, True):
        answer = with_tools.chat(MODEL, messages, stream=stream, **fields)
        chunks = list(answer) if stream else [answer]
        calls = [call for chunk in chunks for call in chunk.message.tool_calls or []]
        assert [call.function.name for call in calls] == ["get_weather"], chunks
        assert calls[0].function.arguments == {"city": "Paris"}, calls
        assert chunks[-1].done_reason == "stop", chunks
    said = {"role": "assistant", "tool_calls": calls}
    result = {"role": "tool", "content": get_weather("Paris"), "tool_name": "get_weather"}
    after = with_tools.chat(MODEL, [*messages, said, result], **fields)
    assert after.done and after.prompt_eval_count > chunks[-1].prompt_eval_count, after


check_models()
check_chat()
check_generate()
check_format()
check_logprobs()
check_refusals()
asyncio.run(check_async())
for tools_host in REST:
    check_tools(tools_host)
