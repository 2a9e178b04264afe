"""Choose the reader of a call's arguments. Pure."""

from __future__ import annotations

from server.formats.call_state import ArgumentReader
from server.formats.description import Calls
from server.formats.json_call import JsonCallReader
from server.formats.schemas import Schema
from server.formats.written_call import LooseCallReader, TaggedCallReader
from server.text.message import CallStart


def reader_of(calls: Calls, begun: CallStart, schema: Schema) -> ArgumentReader:
    """Return a reader of the arguments that follow a call's name.

    Args:
        calls: How the model writes calls. Not ⟨object⟩: such calls contain their name.
        begun: The call.
        schema: JSON schema of the call's arguments.
    """
    match calls.arguments:
        case "parameters":
            return TaggedCallReader(calls, begun, schema)
        case "json":
            reader = JsonCallReader(lambda name, id: None, strict=False)
            reader.named(begun)
            return reader
        case _:
            return LooseCallReader(calls, begun)
