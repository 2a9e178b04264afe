"""What a reply turns into in the Responses API: items that grow, and the events that tell of it. Pure."""

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
    """The items of one response. Feed it the reply's pieces; each step returns the events that tell of it,
    without their sequence numbers. One item grows at a time."""

    def __init__(self, id_of: Callable[[str], str] = new_id) -> None:
        """id_of makes an id of a kind: rs, msg or fc."""
        self.items: list[Json] = []
        self._id_of = id_of
        self._open: Json | None = None  # the last of the items, while it grows
        self._grown: list[str] = []  # its text, or arguments, which it gets when it is closed

    def feed(self, pieces: Sequence[Piece], logprobs: Sequence[Json] = ()) -> Iterator[Event]:
        """More of the reply. logprobs: of the content among it, in the shape of a chat completion."""
        untold = [_logprob(entry) for entry in logprobs]
        for piece in pieces:
            match piece:
                case Reasoning(text):
                    if not self._grows("reasoning"):
                        part: Json = {"type": "reasoning_text", "text": ""}
                        yield from self._begin("rs", "reasoning", part, summary=[], content=[])
                    yield from self._more("response.reasoning_text.delta", text, content_index=0)
                case Content(text):
                    yield from self._say(text, untold)
                    untold = []
                case CallBegun(_, id, name):
                    yield from self._begin("fc", "function_call", call_id=id, name=name, arguments="")
                case Arguments(_, text):
                    yield from self._more("response.function_call_arguments.delta", text)
        if untold and self._grows("message"):
            self.items[-1]["content"][0]["logprobs"] += untold

    def end(self, status: Literal["completed", "incomplete"]) -> Iterator[Event]:
        """The reply has ended; its last item is incomplete if the response is. There is always one item."""
        if not self.items:
            yield from self._say("", [])
        yield from self._close(status)

    def _grows(self, type: str) -> bool:
        return self._open is not None and self._open["type"] == type

    def _say(self, text: str, logprobs: list[Json]) -> Iterator[Event]:
        if not self._grows("message"):
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield from self._begin("msg", "message", part, role="assistant", content=[])
        self.items[-1]["content"][0]["logprobs"] += logprobs
        if text:
            yield from self._more("response.output_text.delta", text, content_index=0, logprobs=logprobs)

    def _more(self, type: str, text: str, **extra: Any) -> Iterator[Event]:
        """Of the open item."""
        self._grown.append(text)
        yield {"type": type, **self._place(), "delta": text, **extra}

    def _begin(self, kind: str, type: str, part: Json | None = None, **fields: Any) -> Iterator[Event]:
        """An item with these fields and, if it is no call, its only part."""
        yield from self._close("completed")
        item: Json = {"id": self._id_of(kind), "type": type, **fields, "status": "in_progress"}
        self.items.append(item)
        self._grown = []
        self._open = item
        added = {"output_index": len(self.items) - 1, "item": deepcopy(item)}
        yield {"type": "response.output_item.added", **added}
        if part is not None:
            item["content"].append(part)
            added = {**self._place(), "content_index": 0, "part": deepcopy(part)}
            yield {"type": "response.content_part.added", **added}

    def _close(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = status
        place = self._place()
        grown = "".join(self._grown)
        if item["type"] == "function_call":
            item["arguments"] = grown
            done = {"name": item["name"], "arguments": grown}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        else:
            [part] = item["content"]
            part["text"] = grown
            kind = part["type"]
            extra = {"logprobs": part["logprobs"]} if kind == "output_text" else {}
            told = {**place, "content_index": 0}
            yield {"type": f"response.{kind}.done", **told, "text": grown, **extra}
            yield {"type": "response.content_part.done", **told, "part": part}
        yield {"type": "response.output_item.done", "output_index": place["output_index"], "item": item}

    def _place(self) -> Json:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}


def _logprob(entry: Json) -> Json:
    """bytes is a list here, empty for a token that adds nothing to the text; there is no id."""
    told: Json = {name: value for name, value in entry.items() if name != "id"}
    told["bytes"] = entry["bytes"] or []
    if "top_logprobs" in entry:
        told["top_logprobs"] = [_logprob(one) for one in entry["top_logprobs"]]
    return told
