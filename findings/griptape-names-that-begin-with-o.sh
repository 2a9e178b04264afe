#!/usr/bin/env bash
# griptape 1.13.0, a framework for agents, with the model `olmo-2` of an OpenAI-compatible server.
# Expected: its documentation says to use `OpenAiChatPromptDriver` for such servers, with `base_url` and the name of the model. What the
#           caller sets is sent: the temperature, rules as a message with the role `system`. So it is for a model named `llama-3`.
# Seen:     every name that begins with `o` is taken for one of OpenAI's reasoning models, also with `base_url`. The temperature that the
#           caller set and `stop` are not sent, the rules are sent as `developer`, and `reasoning_effort: medium` is sent, which
#           nobody asked for. No warning says so.
source "$(dirname "$0")/begin.sh"
from_pypi griptape==1.13.0 openai==3.57.0
python - 2>log <<'PY'
import logging
from importlib.metadata import version

from griptape.common import PromptStack
from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
from griptape.tokenizers import SimpleTokenizer

logging.disable(logging.CRITICAL)
KEYS = ("temperature", "stop", "reasoning_effort", "max_tokens")


class Completions:
    """Stands for the client of OpenAI's SDK: takes a request and ends there."""

    chat = completions = property(lambda self: self)

    def create(self, **request):
        sent.append(request)
        raise InterruptedError


def ask(model):
    tokenizer = SimpleTokenizer(characters_per_token=4, max_input_tokens=1024, max_output_tokens=64, stop_sequences=["END"])
    driver = OpenAiChatPromptDriver(
        model=model, base_url="http://127.0.0.1:1/v1", api_key="none", client=Completions(), temperature=0.0,
        max_tokens=64, tokenizer=tokenizer,
    )
    stack = PromptStack()
    stack.add_system_message("Be short.")
    stack.add_user_message("hi")
    try:
        driver.try_run(stack)
    except InterruptedError:
        request = sent.pop()
    return {key: request.get(key) for key in KEYS} | {"role": request["messages"][0]["role"]}


sent = []
print("griptape", version("griptape"))
for model in ("llama-3", "olmo-2", "openhermes"):
    seen = ask(model)
    print(model, seen)
    if model == "llama-3":
        right = {"temperature": 0.0, "stop": ["END"], "reasoning_effort": None, "max_tokens": 64, "role": "system"}
    else:
        right = {"temperature": None, "stop": None, "reasoning_effort": "medium", "max_tokens": 64, "role": "developer"}
    assert seen == right, "changed"
PY
