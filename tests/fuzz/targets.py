"""What strangers can send, each as a function of any bytes. It raises only if duo would fail on them.

Beside "no other error than the documented one" each holds what must be true of what was accepted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import orjson

from drafters.lookup_drafter import LookupDrafter
from drafters.worker import Worker
from server.api.app import create_app
from server.api.body import Body
from server.api.stages.validate import parsed, validated
from server.cache import record
from server.cache.named import fault
from server.engine.proposer import ROOT
from server.errors import DuoError, InvalidRequestError, StartupError, TimeLimitError
from server.formats.families import FAMILIES
from server.formats.reading import MessageReader
from server.grammar.compiler import Compiler
from server.grammar.schema_form import Schema
from server.speculation.hits import HitRates
from server.speculation.tree import MAX_TREE_NODES, ScoredTree
from server.speculation.wire.messages import (
    WIRE_VERSION,
    Draft,
    Message,
    WireError,
    chain_next,
    decode,
    encode,
)
from server.speculation.wire.presence import Presence, names, refusal, vocabulary_card
from server.speculation.wire.roster import read_card, write_card
from server.speculation.wire.streams import message_of
from server.terminal.dialogue import chunks
from server.text.message import coalesced
from server.text.reply_format import ReplyFormat
from server.text.sandbox import Sandboxed
from server.text.timelimit import TimeLimit
from tests.fake_backend import FakeVocabulary
from tests.memory_bus import MemoryPool

Target: TypeAlias = Callable[[bytes], None]

CARD = vocabulary_card(FakeVocabulary())
LEAD = Presence("lead", "lead", "toy", "0", CARD, 4)
DRAFTER = Presence("drafter", "drafter", "toy", "0", CARD, 4)
TAKE = 24  # bytes of one step of a tree
RENDER_S = 2.0
MOST_CHARACTERS = 1 << 22


def messages(data: bytes) -> None:
    """Check that a message has these bytes and no others.

    NaN differs from itself, so bytes are compared.
    """
    for framed in (data, bytes([WIRE_VERSION]) + data):
        try:
            message = decode(framed)
        except WireError:
            continue
        assert encode(message) == _canonical(framed)


def _canonical(data: bytes) -> bytes:
    """Return the bytes with each true value as 1: any byte but 0 is true."""
    return data if data[1] != 3 or data[10] < 2 else data[:10] + b"\1" + data[11:]


def entries(data: bytes) -> None:
    """Read entries of a stream with any fields."""
    field, _, value = data.partition(b"\n")
    for fields in ([field, value], [b"m", value], [b"m", data, field, value]):
        message_of(fields)


def cards(data: bytes) -> None:
    """Check that an accepted card can be written again, shown and compared."""
    card = read_card("drafter:drafter", data)
    if card is not None:
        assert read_card("drafter:drafter", write_card(card)) == card
        refusal(LEAD, card)
        assert all(name.isprintable() for name in names([card]))


def trees(data: bytes) -> None:
    """Check that a tree stays bounded and verifiable under any drafts and commits."""
    tree, acceptance = ScoredTree(5, 77), HitRates()
    chains = [77]
    for step in (data[at : at + TAKE] for at in range(0, len(data), TAKE)):
        kind, which, rest = step[0], step[-1], step[1:]
        if kind % 4 == 0:
            tree.commit(tuple(rest[:3]), acceptance)
        else:
            n = len(rest) // 2
            parents = tuple(rest[i] % (i + 1) - 1 for i in range(n))
            base = max(0, tree.position + kind % 7 - 3)
            chain = chains[which % len(chains)] if which % 2 else tree.chain
            tree.graft(Draft("d" * (kind % 3), 1, base, chain, 0, parents, tuple(rest[:n]), rest[n : 2 * n]))
            chains.append(chain_next(chain, which))
        offered = tree.offer(acceptance, 8)
        assert len(offered.tokens) <= 8
        assert all(ROOT <= parent < i for i, parent in enumerate(offered.parents))
        assert len(tree._places) <= MAX_TREE_NODES + 1  # pyright: ignore[reportPrivateUsage]


def to_drafters(data: bytes) -> None:
    """Give a drafter messages that only decode() checked."""
    pool = MemoryPool()
    worker = Worker(pool.bus(DRAFTER), DRAFTER, LookupDrafter(clock=lambda: 0.0), clock=lambda: 0.0)
    for message in _several(data):
        worker.received(message)
        worker.turn(wait=False)
    worker.turn(wait=False)


def _several(data: bytes) -> Iterator[Message]:
    """Yield messages, each after its length."""
    while len(data) > 1:
        n = 1 + int.from_bytes(data[:2], "little") % 512
        framed, data = data[2 : 2 + n], data[2 + n :]
        try:
            yield decode(bytes([WIRE_VERSION]) + framed)
        except WireError:
            continue


def replies(data: bytes) -> None:
    """Check that a family's reply reads the same whole and in pieces.

    Control characters stand for markers.
    """
    if not data:
        return
    family = FAMILIES[data[0] % len(FAMILIES)]
    schema: Schema = {"properties": {"a": {"type": "string"}, "b": {"type": "object"}}}
    form = ReplyFormat(family.thoughts, False, family.calls, {"f": schema}, channels=family.channels)
    form = replace(form, drops=family.drops, headed=data[0] < 128 or not family.channels)
    marks = [*form.markers, '{"name": "f", "arguments": ', '{"a": "', '"}', "f"]
    text = "".join(marks[ord(c) % len(marks)] if c < " " and c != "\n" else c for c in _text(data[1:]))
    whole = MessageReader(form, str)
    pieces = whole.feed(text) + whole.end()
    parted, parts = MessageReader(form, str), list[Any]()
    size = 1 + data[0] % 5
    for at in range(0, len(text), size):
        parts += parted.feed(text[at : at + size])
    parts += parted.end()
    assert coalesced(pieces) == coalesced(parts)
    assert whole.n_parsed == parted.n_parsed == len(text)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def events(data: bytes) -> None:
    """Read a foreign server's stream as duo chat does."""
    with suppress(DuoError):
        for chunk in chunks(httpx.Response(200, content=data)):
            assert all(isinstance(choice["delta"], dict) for choice in chunk["choices"])


def _forms(form: type[Body]) -> Iterator[type[Body]]:
    for one in form.__subclasses__():
        yield one
        yield from _forms(one)


assert create_app, "whose import makes every form known"
FORMS = sorted(set(_forms(Body)), key=lambda form: f"{form.__module__}.{form.__name__}")


def bodies(data: bytes) -> None:
    """Read any body as any form of request.

    A refusal must be expressible as JSON.
    """
    form = FORMS[data[0] % len(FORMS)] if data else Body
    try:
        validated(form, parsed(data[1:]))
        return
    except DuoError as error:
        told = error
    assert 400 <= told.status < 500
    orjson.dumps(told.message)


COMPILER = Compiler(FakeVocabulary(), kept_bytes=0)


def grammars(data: bytes) -> None:
    _constrained(lambda: COMPILER.gbnf(_text(data)))


def schemas(data: bytes) -> None:
    try:
        schema = parsed(data)
    except InvalidRequestError:
        return
    _constrained(lambda: COMPILER.json_schema(schema))


def _constrained(make: Callable[[], Callable[[], Any]]) -> None:
    """Check that what compiles can be begun and followed."""
    with suppress(InvalidRequestError):
        constraint = make()()
        for _ in range(4):
            allowed = constraint.mask().nonzero()[0]
            if not len(allowed) or allowed[0] >= 256:
                break
            constraint.accept(int(allowed[0]))


LIMIT = TimeLimit(RENDER_S)
TURNS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}],
    "add_generation_prompt": True,
}


def templates(data: bytes) -> None:
    """Check that a stranger's template ends, with bounded text, and reveals nothing of this process."""
    try:
        sandboxed = Sandboxed(_text(data))
    except StartupError:
        return
    n = 0

    def render() -> None:
        nonlocal n
        for piece in sandboxed.generate(TURNS):
            assert "<class" not in piece or "__" not in _text(data)
            n += len(piece)
            if n > MOST_CHARACTERS:
                return

    try:
        LIMIT.run(render)
    except (TimeLimitError, AssertionError):
        raise
    except Exception:  # a template may fail as it likes: whoever renders tells it as a refusal
        return


def files(data: bytes) -> None:
    """Read a snapshot by its bytes, and with sums that are right."""
    fingerprint = record.digest("fuzz")
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        try:
            head, payload = record.read(file, fingerprint)
        except (record.ForeignError, record.CorruptError):
            return
        assert len(payload) == head.n_bytes


def file_names(data: bytes) -> None:
    """Check that a valid name is a file directly in its directory, and no other one's."""
    name = _text(data)
    if fault(name) is None:
        path = (Path("/slots") / name).resolve()
        assert path.parent == Path("/slots")
        assert path.name == name


TARGETS: dict[str, Target] = {
    "messages": messages,
    "entries": entries,
    "cards": cards,
    "trees": trees,
    "to_drafters": to_drafters,
    "replies": replies,
    "events": events,
    "bodies": bodies,
    "grammars": grammars,
    "schemas": schemas,
    "templates": templates,
    "files": files,
    "file_names": file_names,
}
