"""Build the items of a response from a reply's pieces, and the events about them. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

import orjson

from server.api.custom_input import InputReader
from server.api.responses.response_tools import ServedTool
from server.api.sealed import encode_thoughts
from server.text.message import Arguments, CallStart, Content, Piece, Reasoning

Event: TypeAlias = dict[str, Any]
Json: TypeAlias = dict[str, Any]


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(24)}"


@dataclass(frozen=True, slots=True)
class ItemOptions:
    """Options for converting a reply to items."""

    tools: Mapping[str, ServedTool] = field(default_factory=dict[str, ServedTool])
    """The tools that the reply may call, by the model's names for them."""
    as_summary: bool = False
    """True: thoughts are sent as the summary of a reasoning item, False: as its content."""
    sealed: bool = False
    """True: thoughts are also sent as encrypted content."""


class Output:
    """The items of one response; only the last item grows.

    Pass it the reply's pieces. The methods yield the resulting events, without sequence numbers.
    """

    def __init__(self, format: ItemOptions | None = None, id_of: Callable[[str], str] = new_id) -> None:
        """Begin a response.

        Args:
            format: Options of the items.
            id_of: Given a prefix such as rs, msg or fc, returns the id of the next item.
        """
        self.items: list[Json] = []
        self._format = format or ItemOptions()
        self._id_of = id_of
        self._open: Json | None = None  # the last of the items, while it grows
        self._grown: list[str] = []  # parts of the open item's text or arguments, joined when it is closed
        self._input: InputReader | None = None  # reads the input of a custom tool's open call

    def feed(self, pieces: Sequence[Piece], logprobs: Sequence[Json] = ()) -> Iterator[Event]:
        """Add pieces to the items, and yield the resulting events.

        Args:
            pieces: The next pieces of the reply.
            logprobs: Logprobs of the pieces' content, in chat completion format.
        """
        untold = [_logprob_json(entry) for entry in logprobs]
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    yield from self._add_thought(text)
                case Content(text):
                    yield from self._add_text(text, untold)
                    untold = []
                case CallStart():
                    yield from self._begin_call(piece)
                case Arguments(_, text):
                    yield from self._more_arguments(text)
        if untold and self._is_open("message"):
            self.items[-1]["content"][0]["logprobs"] += untold

    def end(self, status: Literal["completed", "incomplete"]) -> Iterator[Event]:
        """End the last item with this status, and yield its last events.

        If the reply has no items yet, it gets an empty message.
        """
        if all(item["type"] == "compaction" for item in self.items):
            yield from self._add_text("", [])
        yield from self._close_item(status)

    def _is_open(self, type: str) -> bool:
        return self._open is not None and self._open["type"] == type

    def _add_thought(self, text: str) -> Iterator[Event]:
        if not self._is_open("reasoning"):
            sealed = {"encrypted_content": None} if self._format.sealed else {}
            yield from self._begin_item("rs", "reasoning", summary=[], content=[], **sealed)
            kind = "summary_text" if self._format.as_summary else "reasoning_text"
            yield from self._begin_part({"type": kind, "text": ""})
        if self._format.as_summary:
            yield from self._add_delta("response.reasoning_summary_text.delta", text, summary_index=0)
        else:
            yield from self._add_delta("response.reasoning_text.delta", text, content_index=0)

    def _add_text(self, text: str, logprobs: list[Json]) -> Iterator[Event]:
        if not self._is_open("message"):
            yield from self._begin_item("msg", "message", role="assistant", content=[])
            yield from self._begin_part(
                {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            )
        self.items[-1]["content"][0]["logprobs"] += logprobs
        if text:
            yield from self._add_delta("response.output_text.delta", text, content_index=0, logprobs=logprobs)

    def _begin_call(self, call: CallStart) -> Iterator[Event]:
        """Begin an item for a call; its fields depend on the type of the tool."""
        tool = self._format.tools.get(call.name)
        name = tool.name if tool else call.name
        within = {"namespace": tool.namespace} if tool and tool.namespace else {}
        match tool.kind if tool else "function":
            case "custom":
                yield from self._begin_item(
                    "ctc", "custom_tool_call", call_id=call.id, name=name, **within, input=""
                )
                self._input = InputReader()
            case "tool_search":
                fields: Json = {"call_id": call.id, "execution": "client", "arguments": {}}
                yield from self._begin_item("tsc", "tool_search_call", **fields)
            case _:
                yield from self._begin_item(
                    "fc", "function_call", call_id=call.id, name=name, **within, arguments=""
                )

    def _more_arguments(self, text: str) -> Iterator[Event]:
        if self._input is not None:
            if known := self._input.feed(text):
                yield from self._add_delta("response.custom_tool_call_input.delta", known)
        elif self._is_open("tool_search_call"):
            self._grown.append(text)
        else:
            yield from self._add_delta("response.function_call_arguments.delta", text)

    def _add_delta(self, type: str, text: str, **extra: Any) -> Iterator[Event]:
        """Add text to the open item, and yield an event of this type, with `extra` as further fields."""
        self._grown.append(text)
        yield {"type": type, **self._item_place(), "delta": text, **extra}

    def _begin_item(self, kind: str, type: str, **fields: Any) -> Iterator[Event]:
        """Close the open item, and begin an item with these fields. `kind`: prefix of its id."""
        yield from self._close_item("completed")
        item: Json = {"id": self._id_of(kind), "type": type, **fields, "status": "in_progress"}
        self.items.append(item)
        self._grown = []
        self._open = item
        added = {"output_index": len(self.items) - 1, "item": deepcopy(item)}
        yield {"type": "response.output_item.added", **added}

    def _begin_part(self, part: Json) -> Iterator[Event]:
        """Add a part to the open item, which has no part yet."""
        summary = part["type"] == "summary_text"
        self.items[-1]["summary" if summary else "content"].append(part)
        type = "response.reasoning_summary_part.added" if summary else "response.content_part.added"
        index = {"summary_index": 0} if summary else {"content_index": 0}
        yield {"type": type, **self._item_place(), **index, "part": deepcopy(part)}

    def _close_item(self, status: str) -> Iterator[Event]:
        """End the open item, if there is one, with this status, and yield its last events."""
        if self._open is None:
            return
        if self._input is not None and (rest := self._input.end()):
            yield from self._add_delta("response.custom_tool_call_input.delta", rest)
        item, self._open, self._input = self._open, None, None
        item["status"] = status
        grown = "".join(self._grown)
        match item["type"]:
            case "function_call":
                yield self._done_call(item, "function_call_arguments", name=item["name"], arguments=grown)
            case "custom_tool_call":
                yield self._done_call(item, "custom_tool_call_input", input=grown)
            case "tool_search_call":
                item["arguments"] = _parsed_object(grown)
            case _:
                yield from self._done_part(item, grown)
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _done_call(self, item: Json, kind: str, **done: Any) -> Event:
        item.update(done)
        return {"type": f"response.{kind}.done", **self._item_place(), **done}

    def _done_part(self, item: Json, grown: str) -> Iterator[Event]:
        [part] = item["content"] or item["summary"]
        part["text"] = grown
        if "encrypted_content" in item:
            item["encrypted_content"] = encode_thoughts(grown)
        if part["type"] == "summary_text":
            told = {**self._item_place(), "summary_index": 0}
            yield {"type": "response.reasoning_summary_text.done", **told, "text": grown}
            yield {"type": "response.reasoning_summary_part.done", **told, "part": part}
            return
        extra = {"logprobs": part["logprobs"]} if part["type"] == "output_text" else {}
        told = {**self._item_place(), "content_index": 0}
        yield {"type": f"response.{part['type']}.done", **told, "text": grown, **extra}
        yield {"type": "response.content_part.done", **told, "part": part}

    def _item_place(self) -> Json:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}


def _parsed_object(arguments: str) -> Json:
    """Parse the JSON text of arguments; return {} if it is incomplete or not an object."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return cast(Json, given) if isinstance(given, dict) else {}


def _logprob_json(entry: Json) -> Json:
    """Convert a chat completion's logprob to this API's: without `id`, and with `bytes` [] for null."""
    told: Json = {name: value for name, value in entry.items() if name != "id"}
    told["bytes"] = entry["bytes"] or []
    if "top_logprobs" in entry:
        told["top_logprobs"] = [_logprob_json(one) for one in entry["top_logprobs"]]
    return told
