"""The official client with and without the right key: python openai_key.py BASE_URL KEY."""

import sys

from openai import AuthenticationError, OpenAI

base_url, key = sys.argv[1:]
for wrong in ["none", key + "x"]:
    try:
        OpenAI(base_url=base_url, api_key=wrong, max_retries=0).models.list()
    except AuthenticationError as error:
        assert error.code == "invalid_api_key", error
    else:
        raise AssertionError(f"{wrong} was accepted")
client = OpenAI(base_url=base_url, api_key=key, max_retries=0)
model = client.models.list().data[0].id
answer = client.completions.create(model=model, prompt="Once", max_tokens=2)
assert answer.usage.completion_tokens == 2, answer
