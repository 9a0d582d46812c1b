"""Tools through the official client: python openai_tools.py BASE_URL.

The server's chat template shows the model by example how to call `get_weather`, so that what it
does is known; what is tested is the way from its text to the client's objects and back.
"""

import json
import sys

from openai import BadRequestError, OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=300)
MODEL = client.models.list().data[0].id
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def question(city: str) -> dict:
    return {"role": "user", "content": f"Weather in {city}?"}


def options(messages: list, **more) -> dict:
    base = {"model": MODEL, "messages": messages, "tools": TOOLS, "temperature": 0}
    return base | {"max_tokens": 60, "stop": ["\n"]} | more


def calls_of(message) -> list:
    return [
        (call.type, call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls
    ]


def main() -> None:
    asked = [question("Paris")]
    paris = [("function", "get_weather", {"city": "Paris"})]
    whole = client.chat.completions.create(**options(asked)).choices[0]
    assert calls_of(whole.message) == paris and whole.message.content is None, whole
    assert whole.finish_reason == "tool_calls", whole

    with client.chat.completions.stream(**options(asked)) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds, kinds
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert calls_of(streamed.message) == paris and streamed.finish_reason == "tool_calls", streamed
    assert streamed.message.tool_calls[0].function.parsed_arguments == {"city": "Paris"}, streamed
    assert streamed.message.tool_calls[0].id.startswith("call_"), streamed

    deltas = [
        delta
        for chunk in client.chat.completions.create(**options(asked, stream=True))
        for delta in chunk.choices[0].delta.tool_calls or []
    ]
    assert [delta.index for delta in deltas] == [0] * len(deltas), deltas
    assert deltas[0].id and deltas[0].function.name == "get_weather", deltas
    assert not any(delta.id or delta.function.name for delta in deltas[1:]), deltas
    pieces = "".join(delta.function.arguments for delta in deltas)
    assert pieces == whole.message.tool_calls[0].function.arguments, deltas

    # Without a stop string, the end of the first call ends the answer.
    first = client.chat.completions.create(**options(asked, stop=None, parallel_tool_calls=False))
    assert calls_of(first.choices[0].message) == paris, first

    result = {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "Sunny."}
    history = [*asked, whole.message, result, question("Berlin")]
    second = client.chat.completions.create(**options(history)).choices[0].message
    assert calls_of(second) == [("function", "get_weather", {"city": "Berlin"})], second

    text = client.chat.completions.create(**options(asked, tool_choice="none")).choices[0]
    assert text.message.tool_calls is None and "<tool_call>" in text.message.content, text
    assert text.finish_reason == "stop", text
    # Calls on demand, also where nothing suggests one.
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ["required", named]:
        demand = {"tool_choice": choice, "parallel_tool_calls": False, "stop": None}
        greeting = [{"role": "user", "content": "Say hello to Paris."}]
        for messages in [asked, greeting]:
            called = client.chat.completions.create(**options(messages, **demand)).choices[0]
            [(_, name, arguments)] = calls_of(called.message)
            assert name == "get_weather" and list(arguments) == ["city"], called
            assert called.finish_reason == "tool_calls", called
    unknown = {"type": "function", "function": {"name": "get_time"}}
    try:
        client.chat.completions.create(**options(asked, tool_choice=unknown))
    except BadRequestError as error:
        assert (error.param, error.code) == ("tool_choice", "invalid_value"), error
    else:
        raise AssertionError("a tool that is not there was accepted")


main()
