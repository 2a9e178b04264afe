#!/usr/bin/env bash
# baml-py 0.226.3 (BAML), which makes typed functions of prompts and reads the types from what a model writes, with or
# without JSON around it.
# Expected: a reply that names a choice of an enum is this choice, as a word, and one that names none raises, as other
#           replies that do not fit do. A number is the number that the model wrote. A JSON value where a text is
#           declared stays JSON.
# Seen:     a choice is found within words and with no eye for the longer one: "NOT SPAM" and "not spam" are SPAM,
#           though the enum has NOT_SPAM; "I know" and "unknown" are `no`, "yesterday" is `yes`. A comma in a number is
#           dropped, so "3,14" is 314 and a price of "12,50 EUR" is 1250.0, also in JSON; "1/2" and 0.5 are the whole
#           number 1. An object for a text loses its quotation marks: `{a: b, t: [1, 2]}` is no JSON any more and does
#           not tell 1 from "1". No error is raised, though "about 5 or 6" and "neither" raise one.
source "$(dirname "$0")/begin.sh"
from_pypi baml-py==0.226.3 pydantic==2.11.7 typing-extensions==4.15.0
mkdir baml_src
cat > baml_src/main.baml <<'BAML'
generator target {
  output_type "python/pydantic"
  output_dir ".."
  version "0.226.3"
}

client<llm> Local {
  provider "openai-generic"
  options {
    base_url "http://127.0.0.1:1/v1"
    model "none"
    api_key "none"
  }
}

enum Label {
  SPAM
  NOT_SPAM
}

class Item {
  price float
  note string
}

function Classify(text: string) -> Label {
  client Local
  prompt #"{{ text }}"#
}

function Answer(text: string) -> "yes" | "no" {
  client Local
  prompt #"{{ text }}"#
}

function Count(text: string) -> int {
  client Local
  prompt #"{{ text }}"#
}

function Price(text: string) -> float {
  client Local
  prompt #"{{ text }}"#
}

function Read(text: string) -> Item {
  client Local
  prompt #"{{ text }}"#
}
BAML
baml-cli generate >log 2>&1 || { cat log; exit 1; }
BAML_LOG=off python - <<'PY'
import sys
from importlib.metadata import version

sys.path.insert(0, ".")
from baml_client.sync_client import b
from baml_py.errors import BamlError

cases = [  # a function, a model's reply, and what it returns
    ("Classify", "NOT_SPAM", "NOT_SPAM"),
    ("Classify", "NOT SPAM", "SPAM"),
    ("Classify", "This is not spam.", "SPAM"),
    ("Answer", "No.", "no"),
    ("Answer", "I know", "no"),
    ("Answer", "unknown", "no"),
    ("Answer", "yesterday", "yes"),
    ("Answer", "maybe", "raised"),
    ("Price", "3.14", 3.14),
    ("Price", "3,14", 314.0),
    ("Price", "12,50 EUR", 1250.0),
    ("Count", "7", 7),
    ("Count", "1/2", 1),
    ("Count", "0.5", 1),
    ("Count", "about 5 or 6", "raised"),
    ("Read", '{"price": "12,50", "note": "x"}', (1250.0, "x")),
    ("Read", '{"price": 1, "note": {"a": "b", "t": [1, "2"]}}', (1.0, "{a: b, t: [1, 2]}")),
]
print("baml-py", version("baml-py"))
for name, reply, expected in cases:
    try:
        seen = getattr(b.parse, name)(reply)
    except BamlError:
        seen = "raised"
    if name == "Classify":
        seen = seen.value
    if name == "Read":
        seen = seen.price, seen.note
    print(f"{name} of {reply!r}: {seen!r}")
    assert seen == expected, "changed"
PY
