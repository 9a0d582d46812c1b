"""Anthropic's client's tour of a server: python anthropic_tour.py ADDRESS TOOLS_ADDRESS.

Every step asserts what a program written for Anthropic's API relies on. The second server's chat
template shows the model by example how to call `get_weather`, so that what it does is known.
"""

import asyncio
import sys
from typing import Literal

from anthropic import (
    Anthropic,
    AsyncAnthropic,
    BadRequestError,
    NotFoundError,
    beta_tool,
)
from pydantic import BaseModel

ADDRESS, TOOLS_ADDRESS = sys.argv[1:]
# The client's own retries would hide failures.
OPTIONS = {"api_key": "none", "max_retries": 0, "timeout": 300}
QUESTION = [{"role": "user", "content": "Name three colors."}]
WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
GREEDY = {"extra_body": {"temperature": 0}}

client = Anthropic(base_url=f"http://{ADDRESS}", **OPTIONS)
tools_client = Anthropic(base_url=f"http://{TOOLS_ADDRESS}", **OPTIONS)


def check_form(*answers: BaseModel) -> None:
    """Checks that answers have every field that their type requires: the client itself lets pass
    what has not."""
    for answer in answers:
        type(answer).model_validate(answer.to_dict(mode="json"))


def check_models() -> str:
    models = list(client.models.list())
    assert len(models) == 1, models
    [model] = models
    assert model.type == "model" and model.display_name == model.id, model
    assert model.max_input_tokens == model.max_tokens == 8192, model
    retrieved = client.models.retrieve(model.id)
    assert retrieved == model and model.created_at.year > 2000, (retrieved, model)
    check_form(model)
    return model.id


def check_messages(model: str) -> None:
    options = {"model": model, "messages": QUESTION, "max_tokens": 60} | GREEDY
    whole = client.messages.create(**options)
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", model), whole
    assert [block.type for block in whole.content] == ["text"], whole
    assert "Blue" in whole.content[0].text and whole.stop_reason == "end_turn", whole
    assert whole.id.startswith("msg_") and whole._request_id, whole
    counted = client.messages.count_tokens(model=model, messages=QUESTION).input_tokens
    usage = whole.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted, (usage, counted)
    assert usage.cache_creation_input_tokens == 0 < usage.output_tokens <= 60, usage

    events = list(client.messages.create(**options, stream=True))
    assert events[0].type == "message_start" and events[-1].type == "message_stop", events
    check_form(whole, *events)
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text, final
    assert final.stop_reason == "end_turn", final
    assert final.usage.output_tokens == usage.output_tokens, final

    # A system prompt of each form, earlier turns, and the beginning of the answer.
    blocks = [{"type": "text", "text": "You are a pirate.", "cache_control": {"type": "ephemeral"}}]
    texts = []
    for system in ["You are a pirate.", blocks]:
        answer = client.messages.create(**options, system=system, metadata={"user_id": "someone"})
        texts.append(answer.content[0].text)
    assert texts[0] == texts[1] != whole.content[0].text, texts
    history = [*QUESTION, whole.to_param(), {"role": "user", "content": "Which one is first?"}]
    longer = client.messages.count_tokens(model=model, messages=history).input_tokens
    assert longer > counted + usage.output_tokens, (longer, counted, usage)
    begun = [*QUESTION, {"role": "assistant", "content": "1. Red\n2."}]
    rest = client.messages.create(**options | {"messages": begun, "max_tokens": 1})
    assert rest.stop_reason == "max_tokens" and rest.usage.output_tokens == 1, rest
    assert rest.content[0].text == " Blue", rest


def check_stop_sequences(model: str) -> None:
    count = [
        {"role": "user", "content": "Count to ten."},
        {"role": "assistant", "content": "1, 2, 3, 4, 5,"},
    ]
    options = {"model": model, "messages": count, "max_tokens": 30} | GREEDY
    options["stop_sequences"] = ["8"]
    whole = client.messages.create(**options)
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "8"), whole
    assert whole.content[0].text == " 6, 7, ", whole
    with client.messages.stream(**options) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "8"), final
    assert final.content[0].text == whole.content[0].text, final


class Color(BaseModel):
    name: Literal["red", "green", "blue"]
    warm: bool


def check_structured_output(model: str) -> None:
    options = {"model": model, "messages": QUESTION, "max_tokens": 100, "output_format": Color}
    parsed = client.messages.parse(**options, **GREEDY)
    assert isinstance(parsed.parsed_output, Color) and parsed.stop_reason == "end_turn", parsed
    with client.messages.stream(**options, **GREEDY) as stream:
        final = stream.get_final_message()
    assert final.parsed_output == parsed.parsed_output, final


def weather_options(model: str, messages: list, **more) -> dict:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    options = {"model": model, "messages": messages, "max_tokens": 60} | GREEDY
    return options | {"tools": [WEATHER], "tool_choice": choice} | more


def call_of(message):
    [call] = message.content
    assert call.type == "tool_use" and message.stop_reason == "tool_use", message
    assert call.name == "get_weather" and call.id, message
    return call


def check_tools(model: str) -> None:
    ask = tools_client.messages
    paris = [{"role": "user", "content": "Weather in Paris?"}]
    whole = ask.create(**weather_options(model, paris))
    call = call_of(whole)
    assert call.input == {"city": "Paris"}, whole

    with ask.stream(**weather_options(model, paris)) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(pieces) > 1 and call_of(final).input == {"city": "Paris"}, (pieces, final)

    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
    berlin = [result, {"type": "text", "text": "Weather in Berlin?"}]
    history = [*paris, whole.to_param(), {"role": "user", "content": berlin}]
    assert call_of(ask.create(**weather_options(model, history))).input == {"city": "Berlin"}

    silent = ask.create(**weather_options(model, paris, tool_choice={"type": "none"}))
    assert [block.type for block in silent.content] == ["text"], silent
    # Calls on demand, also where nothing suggests one.
    greeting = [{"role": "user", "content": "Say hello to Paris."}]
    for demand in [{"type": "any"}, {"type": "tool", "name": "get_weather"}]:
        choice = demand | {"disable_parallel_tool_use": True}
        called = call_of(ask.create(**weather_options(model, greeting, tool_choice=choice)))
        assert list(called.input) == ["city"], called

    counted = [
        tools_client.messages.count_tokens(model=model, messages=paris, **tools).input_tokens
        for tools in [{}, {"tools": [WEATHER]}]
    ]
    assert counted[0] < counted[1], counted


def check_tool_runner(model: str) -> None:
    asked = []

    @beta_tool
    def get_weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: Where
        """
        asked.append(city)
        return "Sunny."

    messages = [{"role": "user", "content": "Weather in Paris?"}]
    options = weather_options(model, messages, tools=[get_weather])
    runner = tools_client.beta.messages.tool_runner(**options, max_iterations=2)
    answers = list(runner)
    assert asked[0] == "Paris" and len(answers) == 2, (asked, answers)


def check_error(kind: type, name: str, message: str, call) -> None:
    try:
        call()
    except kind as error:
        assert error.type == name and error.api_message.startswith(message), error
        assert error.request_id and error.request_id == error.body["request_id"], error.response
    else:
        raise AssertionError(f"{kind.__name__} expected: {message}")


def check_errors(model: str) -> None:
    def ask(**options):
        request = {"model": model, "messages": QUESTION, "max_tokens": 10} | options
        return lambda: client.messages.create(**request)

    def refused(message: str, **options) -> None:
        check_error(BadRequestError, "invalid_request_error", message, ask(**options))

    too_long = [{"role": "user", "content": "word " * 9000}]
    image = {"type": "image", "source": {"type": "url", "url": "http://localhost/"}}
    refused("temperature", extra_body={"temperature": 9})
    refused("messages", messages=[])
    refused("prompt is too long: 9031 tokens > 8192 maximum", messages=too_long)
    refused("messages[0].content[0]", messages=[{"role": "user", "content": [image]}])
    refused("max_tokens", max_tokens=0)
    refused("max_tokens", max_tokens=0, stream=True)
    refused("tools", tools=[WEATHER])
    refused("best", extra_body={"best": 1})
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    wrong = {"format": {"type": "json_schema", "schema": schema}}
    refused("output_config.format.schema.properties.a.not", output_config=wrong)
    unknown = "the model `claude` is not served here"
    check_error(NotFoundError, "not_found_error", unknown, ask(model="claude"))
    retrieve = lambda: client.models.retrieve("claude")
    check_error(NotFoundError, "not_found_error", unknown, retrieve)


async def check_concurrent_streams(model: str) -> None:
    animals = ["cat", "dog", "horse", "whale"]
    async with AsyncAnthropic(base_url=f"http://{ADDRESS}", **OPTIONS) as asynchronous:

        async def ask(animal: str) -> str:
            messages = [{"role": "user", "content": f"Write one sentence about a {animal}."}]
            options = {"model": model, "messages": messages, "max_tokens": 24} | GREEDY
            async with asynchronous.messages.stream(**options) as stream:
                return await stream.get_final_text()

        alone = [await ask(animal) for animal in animals]
        together = await asyncio.gather(*map(ask, animals))
    assert alone == list(together), list(zip(alone, together))
    assert len(set(alone)) == len(animals), alone


def main() -> None:
    model = check_models()
    check_messages(model)
    check_stop_sequences(model)
    check_structured_output(model)
    check_tools(model)
    check_tool_runner(model)
    check_errors(model)
    asyncio.run(check_concurrent_streams(model))


main()
