"""The Responses API through the official client: python openai_responses.py BASE_URL [tools].

With `tools`, the server's chat template shows the model by example how to call `get_weather`, and
the tour is about calls; without, about everything else.
"""

import json
import sys
import time
from itertools import islice
from typing import Literal

from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=300)
MODEL = client.models.list().data[0].id
QUESTION = "Name three colors."
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def options(ask, **more) -> dict:
    return {"model": MODEL, "input": ask, "temperature": 0, "max_output_tokens": 60} | more


def create(ask, **more) -> Response:
    return client.responses.create(**options(ask, **more))


def check_error(kind: type, param: str, code: str, call) -> None:
    try:
        call()
    except kind as error:
        assert (error.param, error.code) == (param, code), error
    else:
        raise AssertionError(f"{kind.__name__} with {code} expected")


def check_answers() -> None:
    raw = client.responses.with_raw_response.create(**options(QUESTION))
    # The client takes what it gets; its models say what must be there.
    whole = Response.model_validate(json.loads(raw.content))
    assert whole.status == "completed" and "Blue" in whole.output_text, whole
    assert [item.type for item in whole.output] == ["message"], whole
    usage = whole.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens, usage
    messages = [{"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert chat.choices[0].message.content == whole.output_text, (chat, whole)

    with client.responses.stream(**options(QUESTION)) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text and final.status == "completed", final
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    names = [event.type for event in events]
    assert names[:2] == ["response.created", "response.in_progress"], names
    assert names[-1] == "response.completed", names
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text and len(deltas) > 5, deltas

    cut = create(QUESTION, max_output_tokens=2)
    assert cut.status == "incomplete", cut
    assert cut.incomplete_details.reason == "max_output_tokens", cut
    logprobs = create(
        QUESTION, max_output_tokens=3, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    tokens = logprobs.output[0].content[0].logprobs
    assert [len(token.top_logprobs) for token in tokens] == [2, 2, 2], logprobs
    assert "".join(token.token for token in tokens) == logprobs.output_text, logprobs


class Color(BaseModel):
    name: Literal["red", "green", "blue"]
    warm: bool


def check_formats() -> None:
    parsed = client.responses.parse(**options(QUESTION), text_format=Color)
    assert isinstance(parsed.output_parsed, Color), parsed
    with client.responses.stream(**options(QUESTION), text_format=Color) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    wrong = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    place = "text.format.schema.properties.a.not"
    check_error(BadRequestError, place, "invalid_value", lambda: create(QUESTION, text=wrong))


def check_conversations() -> None:
    first = create(QUESTION, instructions="Be brief.")
    second = create("And one more?", previous_response_id=first.id)
    history = [{"role": "user", "content": QUESTION}, *first.output]
    by_hand = create([*history, {"role": "user", "content": "And one more?"}], store=False)
    assert second.output_text == by_hand.output_text, (second, by_hand)
    assert second.usage.input_tokens == by_hand.usage.input_tokens, (second, by_hand)
    items = list(client.responses.input_items.list(second.id, limit=2, order="asc"))
    assert [item.role for item in items] == ["user", "assistant", "user"], items
    assert client.responses.retrieve(second.id).to_dict() == second.to_dict()
    client.responses.delete(second.id)
    gone = lambda: client.responses.retrieve(second.id)
    check_error(NotFoundError, "response_id", "response_not_found", gone)
    follow = lambda: create(QUESTION, previous_response_id=second.id)
    check_error(
        BadRequestError, "previous_response_id", "previous_response_not_found", follow
    )
    never = lambda: client.responses.retrieve(by_hand.id)
    check_error(NotFoundError, "response_id", "response_not_found", never)


def check_background() -> None:
    running = create(QUESTION, background=True)
    assert running.status == "queued", running
    while running.status in ("queued", "in_progress"):
        time.sleep(0.05)
        running = client.responses.retrieve(running.id)
    assert running.status == "completed" and "Blue" in running.output_text, running
    assert client.responses.cancel(running.id).to_dict() == running.to_dict()
    endless = options(QUESTION, background=True, max_output_tokens=4000)
    endless = client.responses.create(**endless, extra_body={"ignore_eos": True})
    cancelled = client.responses.cancel(endless.id)
    assert cancelled.status == "cancelled", cancelled
    assert client.responses.retrieve(endless.id).to_dict() == cancelled.to_dict()
    foreground = create(QUESTION, max_output_tokens=1)
    refused = lambda: client.responses.cancel(foreground.id)
    check_error(BadRequestError, "response_id", "response_not_in_background", refused)


def check_background_streams() -> None:
    with client.responses.create(**options(QUESTION, background=True, stream=True)) as stream:
        seen = list(islice(stream, 6))
    names = [event.type for event in seen]
    assert names[:3] == ["response.created", "response.queued", "response.in_progress"], names
    response_id, last = seen[0].response.id, seen[-1].sequence_number
    # Its client left in the middle.
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=last))
    numbers = [event.sequence_number for event in seen + rest]
    assert numbers == list(range(len(numbers))), numbers
    whole = client.responses.retrieve(response_id)
    assert rest[-1].type == "response.completed" and rest[-1].response == whole, rest[-1]
    again = list(client.responses.retrieve(response_id, stream=True))
    assert [e.to_dict() for e in again] == [e.to_dict() for e in seen + rest], again
    with client.responses.stream(response_id=response_id) as stream:
        assert stream.get_final_response().output_text == whole.output_text
    beyond = lambda: client.responses.retrieve(
        response_id, stream=True, starting_after=len(numbers)
    )
    check_error(BadRequestError, "starting_after", "invalid_value", beyond)
    unstreamed = lambda: client.responses.retrieve(create("Hi.").id, stream=True)
    check_error(BadRequestError, "stream", "response_not_streamed", unstreamed)
    endless = options(QUESTION, background=True, stream=True, max_output_tokens=4000)
    with client.responses.create(**endless, extra_body={"ignore_eos": True}) as stream:
        cancelled = client.responses.cancel(next(stream).response.id)
        last = list(stream)[-1]
    assert last.type == "response.cancelled", last
    assert last.to_dict()["response"] == cancelled.to_dict(), last


def check_refusals() -> None:
    for fields, param in [
        ({"temperature": 9}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ]:
        refused = lambda: client.responses.create(**options(QUESTION) | fields)
        check_error(BadRequestError, param, "invalid_value", refused)
    auto = lambda: create(QUESTION, truncation="auto")
    check_error(BadRequestError, "truncation", "unsupported_parameter", auto)


def check_calls() -> None:
    more = {"tools": [TOOL], "extra_body": {"stop": ["\n"]}}
    asked = [{"role": "user", "content": "Weather in Paris?"}]
    whole = create(asked, **more)
    [call] = whole.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Paris"}, whole
    Response.model_validate(whole.model_dump(by_alias=True))

    with client.responses.stream(**options(asked, **more)) as stream:
        names = {event.type for event in stream}
        [streamed] = stream.get_final_response().output
    assert "response.function_call_arguments.delta" in names, names
    assert streamed.parsed_arguments == {"city": "Paris"}, streamed
    assert streamed.arguments == call.arguments, streamed

    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    follow = [result, {"role": "user", "content": "Weather in Berlin?"}]
    stored = create(follow, previous_response_id=whole.id, **more)
    by_hand = create([*asked, call, *follow], **more)
    for response in [stored, by_hand]:
        [berlin] = response.output
        assert json.loads(berlin.arguments) == {"city": "Berlin"}, response
    # A call on demand, where nothing suggests one.
    named = {"type": "function", "name": "get_weather"}
    demanded = create("Say hello to Paris.", tools=[TOOL], tool_choice=named)
    assert [item.type for item in demanded.output] == ["function_call"], demanded


def main() -> None:
    if sys.argv[2:] == ["tools"]:
        check_calls()
        return
    check_answers()
    check_formats()
    check_conversations()
    check_background()
    check_background_streams()
    check_refusals()


main()
