"""What fuzzing begins with: right inputs of each target."""

from __future__ import annotations

import orjson

from server.cache import record
from server.sampling.params import SamplingParams
from server.speculation.wire.messages import ROOT, Close, Commit, Draft, Message, Open, Refuse, Want, encode
from server.speculation.wire.roster import write_card
from tests.fuzz.targets import DRAFTER, FORMS

SAMPLING = SamplingParams(0.5, 40, 0.95, 0.05, 9)
MESSAGES: list[Message] = [
    Open("lead", 7, 5, 16, SAMPLING, (1, 2, 3), "s", 3),
    Commit(7, 3, 9, (5, 6)),
    Close("lead", 7, keep=True),
    Refuse("lead", "no"),
    Draft("d", 7, 5, 6, 1500, (ROOT, 0, 0), (10, 11, 12), b"\xff\x80\x00"),
    Want("d", 7, 2),
]
_FRAMED = [encode(message) for message in MESSAGES]
_CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0.5}
_OTHERS = {"prompt": "Once", "input": "Hi", "query": "a", "documents": ["b"], "filename": "a", "tokens": [1]}
_SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    {"anyOf": [{"type": "integer", "minimum": 3}, {"enum": ["x", None]}]},
    {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
    {"type": "string", "pattern": "^(a|b)*c{2,3}$", "maxLength": 9},
]
_SNAPSHOT = record.record(record.digest("fuzz"), "00" * 32, [1, 2, 3], b"payload")

SEEDS: dict[str, list[bytes]] = {
    "messages": _FRAMED + [framed[1:] for framed in _FRAMED],
    "entries": [b"m\n" + framed for framed in _FRAMED],
    "cards": [write_card(DRAFTER)],
    "trees": [bytes(range(1, 97)), b"\1" * 50],
    "to_drafters": [b"".join((len(f) - 2).to_bytes(2, "little") + f[1:] for f in _FRAMED)],
    "replies": [bytes([n]) + b'\1\2{"name": "f", "arguments": {"a": 1}}\3' for n in range(0, 240, 6)],
    "events": [b'data: {"choices": []}\n\ndata: [DONE]\n', b'data: {"error": {"message": "no"}}\n'],
    "bodies": [bytes([n]) + orjson.dumps(_CHAT | _OTHERS) for n in range(len(FORMS))],
    "grammars": [b'root ::= "a" [b-d]{2,3} (x | "e")*\nx ::= [^\\n]+ | "\\x41" root?'],
    "schemas": [orjson.dumps(schema) for schema in _SCHEMAS],
    "templates": [
        b"{% for m in messages %}{{ m['role'] ~ ': ' + m.content }}{% endfor %}",
        b"{% set n = namespace(a='x') %}{% for i in range(9) %}{% set n.a = n.a * 2 %}{% endfor %}{{ n.a }}",
        b"{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__ }}{{ messages | map(attribute='role') }}",
    ],
    "files": [_SNAPSHOT.head + _SNAPSHOT.payload + b"\0\0\0\0"],
    "file_names": [b"a.bin", b"../a", b".a", "ä".encode()],
}
