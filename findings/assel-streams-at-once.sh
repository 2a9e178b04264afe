#!/usr/bin/env bash
# assel 1.0.0, a reader of server-sent events that is fed with the bytes as they arrive.
# Expected: a parser for each stream, so that streams read at the same time do not touch each other.
# Seen:     all parsers share one decoder of UTF-8. Where a chunk of one stream ends within a character (networks cut anywhere),
#           its first byte goes to the stream that is read next, which raises UnicodeDecodeError; the message there is lost.
#           One stream after the other, cut in the same place, is read.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install assel==1.0.0
"$dir/venv/bin/python" - <<'PY'
from importlib.metadata import version

from assel import Parser


def read(chunks):
    parsers, seen = {}, {}
    for stream, chunk in chunks:
        try:
            told = [event.data for event in parsers.setdefault(stream, Parser()).receive_bytes(chunk)]
        except Exception as error:
            told = [type(error).__name__]
        seen.setdefault(stream, []).extend(told)
    return seen


event, other = "data: größer\n\n".encode(), b"data: hello\n\n"
cut = event.index("ö".encode()) + 1
begin, rest = ("first", event[:cut]), ("first", event[cut:])
after_another = read([begin, rest, ("second", other)])
at_once = read([begin, ("second", other), rest])
print(f"assel {version('assel')}, one after the other: {after_another}, at the same time: {at_once}")
assert after_another == {"first": ["größer"], "second": ["hello"]}, after_another
assert at_once == {"first": ["größer"], "second": ["UnicodeDecodeError"]}, "changed"
PY
