#!/usr/bin/env bash
# jsoncurrent 0.3.0, which makes patches of the JSON that a model is still writing, and puts them together again elsewhere.
# Expected: what the collector puts together is what the model wrote; a patch `complete` has the whole value; `to_json()` and
#           `replace()` of a patch make text of it and change it. Its documentation says so.
# Seen:     in patches `complete` a list of texts or numbers is its last item: `{"tags": ["a", "b"]}` has the tags "b". A list with an
#           object or a list after a text or a number raises AttributeError or TypeError. A key with a dot, a file's name, is
#           collected as an object in an object (`{"main": {"py": ...}}`), and an empty key is lost. A patch has neither method.
#           partial-json-stream 1.0.0 reads all of it rightly.
source "$(dirname "$0")/begin.sh"
from_pypi jsoncurrent==0.3.0 partial-json-stream==1.0.0
python - <<'PY'
import json
from importlib.metadata import version

from jsoncurrent import Collector, Emitter
from partial_json_stream import JsonStreamParser

print("jsoncurrent", version("jsoncurrent"), "partial-json-stream", version("partial-json-stream"))


def read(text):
    patches, emitter, collector = [], Emitter(), Collector()
    emitter.on("patch", patches.append)
    try:
        for character in text:
            emitter.write(character)
        emitter.flush()
        assert not hasattr(patches[0], "to_json") and not hasattr(patches[0], "replace"), "changed"
        for patch in patches:
            collector.consume(patch)
    except (AttributeError, TypeError) as error:
        return type(error).__name__
    return patches[-1].value, collector.value


for text, expected in (
    ('{"tags": [{"a": 1}, {"b": 2}]}', ({"tags": [{"a": 1}, {"b": 2}]}, {"tags": [{"a": 1}, {"b": 2}]})),
    ('{"tags": ["a", "b"]}', ({"tags": "b"}, {"tags": ["a", "b"]})),
    ('{"content": ["a", {"b": 1}]}', "AttributeError"),
    ('{"content": ["a", ["b"]]}', "TypeError"),
    ('{"main.py": "x = 1"}', ({"main.py": "x = 1"}, {"main": {"py": "x = 1"}})),
    ('{"": 1}', ({"": 1}, {})),
):
    seen, parser = read(text), JsonStreamParser()
    for character in text:
        parser.push(character)
    parser.end()
    print(f"{text}: jsoncurrent (last patch, collected) {seen}, partial-json-stream {parser.snapshot().value}")
    assert parser.snapshot().value == json.loads(text), text
    assert seen == expected, "changed"
PY
