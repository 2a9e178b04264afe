#!/usr/bin/env bash
# jsonriver 1.0.0 of PyPI, a port of the TypeScript library, which reads JSON that is still being streamed (a tool call's arguments, say).
# Expected: its documentation says that the final result matches `json.loads()` exactly.
# Seen:     every number is a float, so a whole number changes its type (`range` of it raises), and the id 9007199254740993 ends with a
#           2. A character that is escaped as two surrogates, as Python's json module writes everything beyond U+FFFF, stays two
#           surrogates, so encoding the text in UTF-8 raises. partial-json-stream 1.0.0 matches `json.loads()`.
source "$(dirname "$0")/begin.sh"
from_pypi jsonriver==1.0.0 partial-json-stream==1.0.0
python - <<'PY'
import asyncio
import json
from importlib.metadata import version

from jsonriver import parse
from partial_json_stream import JsonStreamParser


async def last(text):
    async def characters():
        for character in text:
            yield character

    async for value in parse(characters()):
        pass
    return value


print("jsonriver", version("jsonriver"), "partial-json-stream", version("partial-json-stream"))
for value, expected in (
    ({"ratio": 0.5, "name": "a"}, {"ratio": 0.5, "name": "a"}),
    ({"count": 3}, {"count": 3.0}),
    ({"id": 9007199254740993}, {"id": 9007199254740992.0}),
    ({"title": "𠮷野家"}, {"title": "\ud842\udfb7野家"}),
):
    text, parser = json.dumps(value), JsonStreamParser()
    seen = asyncio.run(last(text))
    for character in text:
        parser.push(character)
    parser.end()
    print(f"{text}: json {value!a}, jsonriver {seen!a}, partial-json-stream {parser.snapshot().value!a}")
    assert repr(parser.snapshot().value) == repr(json.loads(text)) == repr(value), text
    assert repr(seen) == repr(expected), "changed"
try:
    seen["title"].encode()
except UnicodeEncodeError as error:
    print(error)
else:
    raise AssertionError("changed")
PY
