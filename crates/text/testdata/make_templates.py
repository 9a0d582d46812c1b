"""Makes `published_templates.json`: what `transformers` renders with published chat templates.

    pip install transformers jinja2
    python make_templates.py TEMPLATES

TEMPLATES is a folder of `NAME.jinja` files, one for each name in `NAMES`; llama.cpp's source has
most of them in `models/templates`, the others are the `chat_template` of a checkpoint's
`tokenizer_config.json`. Every chat is rendered with every template. Left out are the pairs at which
the template fails with a Python error of its own, such as a loop over `None`: there we render.
"""

import copy
import datetime
import json
import pathlib
import sys

from jinja2.exceptions import TemplateError
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent

NAMES = [
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "google-gemma-3-270m-it",
    "HuggingFaceTB-SmolLM2-135M-Instruct",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
]

# 31 July 2024, 12:34:56 UTC.
NOW = datetime.datetime(2024, 7, 31, 12, 34, 56, tzinfo=datetime.timezone.utc)

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content, id):
    return {"role": "tool", "name": "weather", "content": content, "tool_call_id": id}


TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "It's <now> & \"here\", Zürich", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "enum": ["Zürich", "Oslo"]},
            "days": {"type": "integer", "default": 1.5}}}}}]
ARGUMENTS = {"city": "Zürich", "days": None, "sure": True, "x": 1e-7}

# name -> (messages, variables)
CHATS = {
    "a question": ([user(' Hi <there> & "you" ')], {}),
    "no answer asked for": ([user("Hi"), assistant("Hello ✓")], {"add_generation_prompt": False}),
    "several turns": ([
        system(" Speak Klingon.\n"), user("Qapla'?\n"),
        assistant("<think>\nhm\n</think>\n\nyes"), user("Why?")], {}),
    "thinking off": ([user("2+2?")], {"enable_thinking": False}),
    "thoughts apart": ([
        user("2+2?"), assistant("4", reasoning_content="two and two"), user("3?")],
        {"enable_thinking": True}),
    "parts": ([
        system([{"type": "text", "text": "sys"}]),
        user([{"type": "text", "text": "one"}, {"type": "text", "text": " two"}])], {}),
    "null content": ([user("x"), assistant(None), user("y")], {}),
    "tools": ([system("be good"), user("Weather?")], {"tools": TOOLS}),
    "a call and its result": ([
        user("Weather?"), assistant("", tool_calls=[call("weather", ARGUMENTS, "call00001")]),
        result('{"t": 12}', "call00001"), user("and?")], {"tools": TOOLS}),
    "calls without content": ([
        user("Weather?"),
        assistant(None, tool_calls=[
            call("weather", {"city": "Oslo"}, "call00001"), call("weather", {}, "call00002")]),
        result("3", "call00001"), result("none", "call00002")], {"tools": TOOLS}),
    "arguments as text": ([
        user("Weather?"), assistant("", tool_calls=[call("weather", '{"city": "Oslo"}', "1")]),
        result("3", "1")], {"add_generation_prompt": False}),
    "two questions": ([user("a"), user("b")], {}),
    "only a system message": ([system("a")], {}),
    "the assistant begins": ([assistant("a"), user("b")], {}),
    "nothing said": ([user("")], {}),
    "hard characters": ([
        system("你是"), user("🙂\u200d é\r\n\ttab\\n {{ x }} {% y %}"),
        assistant("  lead and trail  \n"), user("z")], {}),
    "another role": ([{"role": "critic", "content": "no"}, user("x")], {}),
    "an answer to go on with": (
        [user("q"), assistant("The answer is")],
        {"add_generation_prompt": False, "continue_final_message": True}),
    "an answer that ends with spaces": (
        [system("s"), user("q"), assistant("The answer is  ")],
        {"add_generation_prompt": False, "continue_final_message": True}),
}


class FrozenTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def render(template, messages, variables):
    """Returns the text, or what the template says to refuse the messages, or nothing."""
    variables = {"add_generation_prompt": True, "tools": None, **copy.deepcopy(variables)}
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [copy.deepcopy(messages)], chat_template=template, **TOKENS, **variables)
        return {"text": texts[0]}
    except TemplateError as error:
        return {"raised": str(error)}
    except ValueError as error:
        assert "continue_final_message" in str(error), error
        return {"raised": "the last message cannot be continued"}
    except TypeError:
        return None


def main():
    folder = pathlib.Path(sys.argv[1])
    chat_template_utils.datetime = FrozenTime
    templates = {name: (folder / f"{name}.jinja").read_text() for name in NAMES}
    renders = []
    for name, template in templates.items():
        for chat, (messages, variables) in CHATS.items():
            rendered = render(template, messages, variables)
            if rendered is not None:
                renders.append({"template": name, "chat": chat, **rendered})
    chats = {
        name: {"messages": messages, "variables": {"add_generation_prompt": True, **variables}}
        for name, (messages, variables) in CHATS.items()
    }
    fixture = {"now": int(NOW.timestamp()), "tokens": TOKENS,
               "templates": templates, "chats": chats, "renders": renders}
    text = json.dumps(fixture, ensure_ascii=True, separators=(",", ":"))
    (HERE / "published_templates.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
