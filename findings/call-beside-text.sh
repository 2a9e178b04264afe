#!/usr/bin/env bash
# griptape 1.13.0 and haystack-ai 3.4.1, frameworks for agents, streaming from an OpenAI-compatible server.
# Expected: a call of a tool runs wherever the chunks end. A `delta` may have `content` and `tool_calls` at once: a server that decodes
#           several tokens in a step may end the text and begin the call in one chunk, or write `content: ""` beside a call.
# Seen:     griptape reads only the text of such a chunk, even where it is empty. The call is lost without a word: the agent ends, and
#           its answer is the text, or nothing. Haystack raises where there is text beside a call. Both run a call that comes in
#           chunks of its own after text.
source "$(dirname "$0")/begin.sh"
from_pypi griptape==1.13.0 haystack-ai==3.4.1 openai==3.57.0
python - <<'PY'
import json

function = {"name": "House_heat", "arguments": '{"room":"a"}'}
call = {"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": function}]}
chunks = {"after text": [{"content": "Wait."}, call], "beside text": [{"content": "Wait.", **call}], "beside no text": [{"content": "", **call}]}
json.dump({name: [*([d, None] for d in deltas), [{}, "tool_calls"]] for name, deltas in chunks.items()}, open("replies.json", "w"))
PY
serve replies.json
python - 2>log <<'PY'
import logging
import os
from importlib.metadata import version

import griptape.structures
import haystack.components.agents
from griptape.artifacts import TextArtifact
from griptape.drivers.prompt.openai import OpenAiChatPromptDriver
from griptape.tools import BaseTool
from griptape.utils.decorators import activity
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from schema import Literal, Schema

logging.disable(logging.CRITICAL)
url = os.environ["url"]


class House(BaseTool):
    @activity(config={"description": "Heat a room.", "schema": Schema({Literal("room", description="a room"): str})})
    def heat(self, params):
        ran.append(params["values"]["room"])
        return TextArtifact("ok")


@tool
def House_heat(room: str) -> str:
    """Heat a room."""
    ran.append(room)
    return "ok"


def ask_griptape(name):
    driver = OpenAiChatPromptDriver(model=name, base_url=url, api_key="none", stream=True, max_attempts=1)
    agent = griptape.structures.Agent(prompt_driver=driver, tools=[House()])
    agent.run("hi")
    return agent.output.value


def ask_haystack(name):
    generator = OpenAIChatGenerator(model=name, api_base_url=url, api_key=Secret.from_token("none"))
    agent = haystack.components.agents.Agent(chat_generator=generator, tools=[House_heat], streaming_callback=lambda chunk: None)
    try:
        return agent.run(messages=[ChatMessage.from_user("hi")])["last_message"].text
    except ValueError as error:
        return f"ValueError: {error}"[:23]


ran = []
readers = (ask_griptape, ask_haystack)
names = ("after text", "beside text", "beside no text")
seen = {name: [(ran.clear(), read(name), len(ran))[1:] for read in readers] for name in names}
for name, (griptapes, haystacks) in seen.items():
    print(f"call {name}: griptape {version('griptape')} answers and runs {griptapes}, haystack-ai {version('haystack-ai')} {haystacks}")
assert seen["after text"] == [("done", 1)] * 2, seen
assert seen["beside text"] == [("Wait.", 0), ("ValueError: Only one of", 0)], "changed"
assert seen["beside no text"] == [("", 0), ("done", 1)], "changed"
PY
