#!/usr/bin/env bash
# instructor 1.17.0, which makes Pydantic models of what a model writes, with `create_partial` and `create_iterable`, which stream.
# Expected: a reply that the token limit cuts (`finish_reason: length`) raises IncompleteOutputException, which its documentation lists
#           for it, and a refusal raises with its text. Both are so where nothing is streamed.
# Seen:     a stream that was cut ends without an error. The last thing of `create_partial` has half a text, and None for a required
#           int. `create_iterable` leaves out the object that was cut, so a list that was cut looks whole. A refusal is an empty
#           stream, and its text is lost.
source "$(dirname "$0")/begin.sh"
from_pypi instructor==1.17.0 openai==3.3.0
cat > replies.json <<'JSON'
{
  "partial": [
    [{"role": "assistant", "content": null}, null],
    [{"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": {"name": "PartialRoom", "arguments": "{\"name\":\"nor"}}]}, null],
    [{}, "length"]],
  "iterable": [
    [{"role": "assistant", "content": null}, null],
    [{"tool_calls": [{"index": 0, "id": "x", "type": "function", "function":
      {"name": "IterableRoom", "arguments": "{\"tasks\":[{\"name\":\"north\",\"degrees\":3},{\"name\":\"so"}}]}, null],
    [{}, "length"]],
  "refusal": [[{"role": "assistant", "content": null}, null], [{"refusal": "I can"}, null], [{"refusal": "not."}, null], [{}, "stop"]]
}
JSON
serve replies.json
python - 2>log <<'PY'
import os
from importlib.metadata import version

import instructor
import openai
from pydantic import BaseModel


class Room(BaseModel):
    name: str
    degrees: int


client = instructor.from_openai(openai.OpenAI(base_url=os.environ["url"], api_key="none"))
request = {"response_model": Room, "messages": [{"role": "user", "content": "hi"}], "max_retries": 0}
partial = [room.model_dump() for room in client.create_partial(model="partial", **request)]
iterable = [room.model_dump() for room in client.create_iterable(model="iterable", **request)]
refusals = [list(ask(model="refusal", **request)) for ask in (client.create_partial, client.create_iterable)]
print("instructor", version("instructor"))
print(f"cut: the last of create_partial is {partial[-1]}, create_iterable gives {iterable}; refusal: {refusals}")
assert partial[-1] == {"name": "nor", "degrees": None}, "changed"
assert iterable == [{"name": "north", "degrees": 3}] and refusals == [[], []], "changed"
PY
