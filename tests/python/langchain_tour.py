"""LangChain's clients' tour of a server: python langchain_tour.py ADDRESS TOOLS_ADDRESS.

Each step is taken by way of OpenAI's API and, where both offer it, of Anthropic's, and must come
to the same. The second server's chat template shows the model by example how to call
`get_weather`, so that what it does is known.
"""

import sys
from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

ADDRESS, TOOLS_ADDRESS = sys.argv[1:]
MODEL = "smollm2-135m"
# The clients' own retries would hide failures.
OPTIONS = {"model": MODEL, "api_key": "none", "max_retries": 0, "timeout": 300, "temperature": 0}
QUESTION = "Name three colors."


def chats(address: str, **options) -> list:
    options = OPTIONS | options
    return [
        ChatOpenAI(base_url=f"http://{address}/v1", stream_usage=True, **options),
        ChatAnthropic(base_url=f"http://{address}", **options),
    ]


def check_answers() -> None:
    answers = []
    for chat in chats(ADDRESS, max_tokens=60):
        whole = chat.invoke(QUESTION)
        usage = whole.usage_metadata
        assert "Blue" in whole.content, whole
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], whole
        chunks = list(chat.stream(QUESTION))
        streamed = sum(chunks[1:], chunks[0])
        assert len(chunks) > 5 and streamed.text == whole.text, (streamed, whole)
        told = streamed.usage_metadata
        assert told["output_tokens"] == usage["output_tokens"], (streamed, whole)
        assert told["input_tokens"] == usage["input_tokens"], (streamed, whole)
        answers.append((whole.text, usage["input_tokens"], usage["output_tokens"]))
    assert answers[0] == answers[1], answers


def check_conversations() -> None:
    messages = [
        SystemMessage("You are a pirate."),
        HumanMessage("Who are you?"),
        AIMessage("A pirate."),
        HumanMessage("Count: 1, 2, 3, 4,"),
    ]
    answers = [chat.invoke(messages, stop=["7"]) for chat in chats(ADDRESS, max_tokens=40)]
    assert answers[0].text == answers[1].text and "7" not in answers[0].text, answers
    counts = [answer.usage_metadata["input_tokens"] for answer in answers]
    assert counts[0] == counts[1] == chats(ADDRESS)[1].get_num_tokens_from_messages(messages)


def check_batches() -> None:
    animals = [f"Write one sentence about a {animal}." for animal in ["cat", "whale", "bee"]]
    for chat in chats(ADDRESS, max_tokens=20):
        together = [answer.text for answer in chat.batch(animals)]
        assert together == [chat.invoke(animal).text for animal in animals], together
        assert len(set(together)) == len(animals), together


@tool
def get_weather(city: str) -> str:
    """Tells the weather"""
    return f"{city}: sunny."


def check_tools() -> None:
    for chat in chats(TOOLS_ADDRESS, max_tokens=60):
        bound = chat.bind_tools([get_weather], parallel_tool_calls=False)
        asked = [HumanMessage("Weather in Paris?")]
        whole = bound.invoke(asked)
        [call] = whole.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"}), whole
        chunks = list(bound.stream(asked))
        [streamed] = sum(chunks[1:], chunks[0]).tool_calls
        assert (streamed["name"], streamed["args"]) == (call["name"], call["args"]), chunks
        result = get_weather.invoke(call)
        assert isinstance(result, ToolMessage) and result.content == "Paris: sunny.", result
        second = bound.invoke([*asked, whole, result, HumanMessage("Weather in Berlin?")])
        assert second.tool_calls[0]["args"] == {"city": "Berlin"}, second
        # Calls on demand, where nothing suggests one.
        for choice in ["any", "get_weather"]:
            forced = chat.bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
            [demanded] = forced.invoke("Say hello to Paris.").tool_calls
            assert demanded["name"] == "get_weather" and list(demanded["args"]) == ["city"]


class Color(BaseModel):
    """A color"""

    name: Literal["red", "green", "blue"]
    warm: bool


def check_structured_output() -> None:
    for chat in chats(TOOLS_ADDRESS, max_tokens=100):
        for method in ["json_schema", "function_calling"]:
            color = chat.with_structured_output(Color, method=method).invoke(QUESTION)
            assert isinstance(color, Color), (method, color)
            told = chat.with_structured_output(Color, method=method, include_raw=True)
            parts = told.invoke(QUESTION)
            assert parts["parsed"] == color and parts["parsing_error"] is None, parts
    anything = chats(ADDRESS)[0].bind(response_format={"type": "json_object"}, max_tokens=20)
    assert anything.invoke(QUESTION).text.startswith("{")


def check_errors() -> None:
    for chat in chats(ADDRESS, max_tokens=10):
        try:
            chat.invoke("word " * 9000)
        except ContextOverflowError as error:
            assert "8192" in str(error), error
        else:
            raise AssertionError("a prompt beyond the context was taken")
        try:
            chat.bind(stop=[""]).invoke(QUESTION)
        except Exception as error:
            assert error.status_code == 400 and "stop" in str(error), error
        else:
            raise AssertionError("an empty stop string was taken")


def main() -> None:
    check_answers()
    check_conversations()
    check_batches()
    check_tools()
    check_structured_output()
    check_errors()


main()
