"""The output items of a response, and the events that tell how they grow. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Literal, TypeAlias

from server.text.message import Arguments, CallBegun, Content, Piece, Reasoning

Event: TypeAlias = dict[str, Any]
Json: TypeAlias = dict[str, Any]


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(24)}"


class Output:
    """The items of one response. feed() and end() yield events without sequence numbers. One item grows at a
    time."""

    def __init__(self, id_of: Callable[[str], str] = new_id) -> None:
        """id_of: makes an id of a kind: rs, msg or fc."""
        self.items: list[Json] = []
        self._id_of = id_of
        self._open: Json | None = None  # the last of the items, while it grows
        self._grown: list[str] = []  # its text, or arguments, which it gets when it is closed

    def feed(self, pieces: Sequence[Piece], logprobs: Sequence[Json] = ()) -> Iterator[Event]:
        """logprobs: of the content among the pieces, in the shape of a chat completion."""
        untold = [_logprob(entry) for entry in logprobs]
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    yield from self._think(text)
                case Content(text):
                    yield from self._say(text, untold)
                    untold = []
                case CallBegun():
                    yield from self._call(piece)
                case Arguments(_, text):
                    yield from self._argue(text)
        if untold and self._open is not None and self._open["type"] == "message":
            self._open["content"][0]["logprobs"] += untold

    def end(self, status: Literal["completed", "incomplete"]) -> Iterator[Event]:
        """Ends the last item, and makes an empty message if there is no item."""
        if not self.items:
            yield from self._say("", [])
        yield from self._close(status)

    def _think(self, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "reasoning":
            item: Json = {"id": self._id_of("rs"), "type": "reasoning", "summary": [], "content": []}
            yield from self._begin({**item, "status": "in_progress"})
            yield from self._begin_part({"type": "reasoning_text", "text": ""})
        yield from self._more("response.reasoning_text.delta", text)

    def _say(self, text: str, logprobs: list[Json]) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "message":
            item: Json = {"id": self._id_of("msg"), "type": "message", "role": "assistant", "content": []}
            yield from self._begin({**item, "status": "in_progress"})
            yield from self._begin_part(
                {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            )
        self.items[-1]["content"][0]["logprobs"] += logprobs
        yield from self._more("response.output_text.delta", text, logprobs=logprobs)

    def _call(self, piece: CallBegun) -> Iterator[Event]:
        call = {"id": self._id_of("fc"), "type": "function_call", "call_id": piece.id, "name": piece.name}
        yield from self._begin({**call, "arguments": "", "status": "in_progress"})

    def _argue(self, text: str) -> Iterator[Event]:
        self._grown.append(text)
        yield {"type": "response.function_call_arguments.delta", **self._place(), "delta": text}

    def _more(self, type: str, text: str, **extra: Any) -> Iterator[Event]:
        """More of the open item's only part."""
        if text:
            self._grown.append(text)
            yield {"type": type, **self._place(), "content_index": 0, "delta": text, **extra}

    def _begin(self, item: Json) -> Iterator[Event]:
        yield from self._close("completed")
        self.items.append(item)
        self._grown = []
        self._open = item
        yield {
            "type": "response.output_item.added",
            "output_index": len(self.items) - 1,
            "item": deepcopy(item),
        }

    def _begin_part(self, part: Json) -> Iterator[Event]:
        self.items[-1]["content"].append(part)
        yield {
            "type": "response.content_part.added",
            **self._place(),
            "content_index": 0,
            "part": deepcopy(part),
        }

    def _close(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = status
        place = self._place()
        grown = "".join(self._grown)
        if item["type"] == "function_call":
            item["arguments"] = grown
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        else:
            [part] = item["content"]
            part["text"] = grown
            kind = part["type"]
            extra = {"logprobs": part["logprobs"]} if kind == "output_text" else {}
            told = {**place, "content_index": 0}
            yield {"type": f"response.{kind}.done", **told, "text": part["text"], **extra}
            yield {"type": "response.content_part.done", **told, "part": part}
        yield {"type": "response.output_item.done", "output_index": place["output_index"], "item": item}

    def _place(self) -> Json:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}


def _logprob(entry: Json) -> Json:
    """bytes is a list here, empty for a token without text."""
    told: Json = {**entry, "bytes": entry["bytes"] or []}
    if "top_logprobs" in entry:
        told["top_logprobs"] = [_logprob(one) for one in entry["top_logprobs"]]
    return told
