"""Requests of every kind and what their clients see, as the API tells it, over two turns or three."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from server.api.stages.submit import seed_of_choice
from server.engine.events import Committed, Stats
from server.engine.request import GenerationRequest
from server.formats.reading import MessageReader
from server.grammar.grammar_constraint import compile_gbnf
from server.sampling.constraint import Constraint
from server.sampling.logprobs import TokenLogprobs
from server.sampling.params import SamplingParams
from server.text.message import Content, Piece
from server.text.reply import ReplyText
from server.text.reply_format import ReplyFormat
from tests.checks import check_engine
from tests.fake_backend import FakeBackend
from tests.invariance.scene import VOCABULARY, Scene
from tests.invariance.scripted import TRUTH
from tests.support import EOG, PROMPT, Harness, Outcome

N_TOKENS, N_MORE = 72, 28  # of a first turn, and of the next
LATE = 2  # steps from a stop string to the cancellation that it causes, as an event loop needs them
GBNF = r"""
root ::= item+
item ::= [a-z ]{4,9} [.,] "\n- so "
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request.

    fields: of SamplingParams. n: choices. n_logprobs is on by default, since it only adds to what is
    compared.
    """

    name: str
    fields: tuple[tuple[str, float], ...] = ()
    n: int = 1
    n_logprobs: int | None = 3
    grammar: bool = False
    stops: bool = False

    def sampling(self, temperature: float) -> SamplingParams:
        """Return parameters without filters: at temperature 1 any token may be drawn, so mistakes show."""
        plain: dict[str, float] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 40}
        fields: dict[str, Any] = {**plain, **dict(self.fields)}
        return SamplingParams(temperature, **fields)


PENALTIES = (
    ("repeat_penalty", 1.3),
    ("repeat_last_n", 20),
    ("presence_penalty", 0.7),
    ("dry_multiplier", 0.8),
    ("dry_allowed_length", 1),
)
KINDS = [
    Kind("plain", n_logprobs=None),
    Kind("logprobs"),
    Kind("grammar", grammar=True),
    Kind("stop_strings", stops=True),
    Kind("n_3", n=3),
    Kind("penalties", PENALTIES),
    Kind("mirostat_1", (("mirostat", 1), ("mirostat_tau", 3.0))),
    Kind("mirostat_2", (("mirostat", 2), ("mirostat_tau", 3.0))),
]
PLAIN = KINDS[0]


class Ask(NamedTuple):
    request: GenerationRequest
    stops: tuple[str, ...] = ()


class Seen(NamedTuple):
    """What a client sees of a reply."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    reason: str
    n_prompt: int
    n_cached: int
    n_predicted: int


def content(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


@dataclass(slots=True)
class Client:
    """Reads one generation as the API does, which cancels it `late` steps after a stop string."""

    ask: Ask
    outcome: Outcome
    cancel: Callable[[int], None]
    late: int
    text: str = ""
    reply: ReplyText = field(init=False)
    _n_seen: int = 0

    def __post_init__(self) -> None:
        self.reply = ReplyText(VOCABULARY, MessageReader(ReplyFormat(), stops=self.ask.stops))

    def look(self) -> None:
        """Read the events of the step that ended."""
        for event in self.outcome.events[self._n_seen :]:
            if isinstance(event, Committed) and not self.reply.stopped:
                self.text += content(self.reply.feed(event))
        self._n_seen = len(self.outcome.events)
        if self.reply.stopped and not self.outcome.ended:
            if self.late == 0:
                self.cancel(self.reply.n_predicted)
            self.late -= 1

    @property
    def stats(self) -> Stats:
        """The engine's counts, which include tokens after the stop string."""
        return self.outcome.finished.stats

    def seen(self) -> Seen:
        outcome, n = self.outcome, self.reply.n_predicted
        logprobs = [one for e in outcome.events if isinstance(e, Committed) for one in e.logprobs]
        stats = self.reply.stats(self.stats)
        return Seen(
            self.text + content(self.reply.end(outcome.finished.reason)),
            outcome.tokens[:n],
            tuple(logprobs[:n]),
            self.reply.finish_reason(outcome.finished.reason),
            stats.n_prompt,
            stats.n_cached,
            stats.n_predicted,
        )


Play: TypeAlias = Callable[[Sequence[Ask]], list[Client]]


def play(
    harness: Harness, asks: Sequence[Ask], during: Callable[[int], None] = lambda _: None, late: int = 0
) -> list[Client]:
    """Run these requests at once to their ends; during(step) is called before each step."""
    ids = harness.submit(*(ask.request for ask in asks))
    clients = [
        Client(ask, harness.outcomes[id], partial(harness.engine.cancel, id), late)
        for id, ask in zip(ids, asks, strict=True)
    ]
    for step in count():
        during(step)
        if not harness.engine.step():
            break
        for client in clients:
            client.look()
    check_engine(harness.engine)
    return clients


def in_scene(
    scene: Scene, asks: Sequence[Ask], during: Callable[[int], None], *, late: int = LATE
) -> list[Client]:
    """Run play() in a scene, which delivers messages before each step."""

    def between(step: int) -> None:
        during(step)
        scene.deliver(step)

    with scene.delivering():
        return play(scene.harness, asks, between, late)


def converse(asks: Sequence[Ask], run: Play, *, again: bool = False) -> list[Client]:
    """Run the asks, a turn that continues each, and with `again` the asks once more.

    Returns all clients.
    """
    first = run(asks)
    following = [
        ask._replace(
            request=replace(ask.request, prompt=(*ask.request.prompt, *tokens, 10), max_tokens=N_MORE)
        )
        for ask, tokens in ((client.ask, client.seen().tokens) for client in first)
    ]
    return [*first, *run(following), *(run(asks) if again else ())]


def without_drafts(asks: Sequence[Ask], *, again: bool = False) -> list[Seen]:
    """Return the replies of a lead without drafts."""
    harness = Harness(FakeBackend(TRUTH))
    clients = converse(asks, lambda turn: play(harness, turn), again=again)
    assert not any(client.stats.n_drafted for client in clients)
    return [client.seen() for client in clients]


@cache
def alone(kind: Kind, temperature: float, *, again: bool = False) -> list[Seen]:
    """Return the undrafted replies to a kind of request, computed once."""
    return without_drafts(asks_of(kind, temperature), again=again)


def assert_same(clients: Sequence[Client], expected: Sequence[Seen], *, but: str = "") -> None:
    """Compare field by field, so that a difference is readable.

    but: a field that may differ.
    """
    assert len(clients) == len(expected)
    for i, (client, other) in enumerate(zip(clients, expected, strict=True)):
        for name, here, there in zip(Seen._fields, client.seen(), other, strict=True):
            if name == but:
                continue
            assert here == there, f"{name} of reply {i} is {here}, without drafts {there}"


def assert_right_and_wrong(clients: Sequence[Client]) -> None:
    """Assert that some guesses were accepted and some rejected, not counting those that a grammar forces."""
    counts = [count for c in clients for source, count in c.stats.drafters.items() if source != "grammar"]
    assert sum(count.accepted for count in counts) > 0, "nothing was accepted"
    assert sum(count.drafted - count.accepted for count in counts) > 0, "nothing was rejected"


@cache
def _grammar() -> Callable[[], Constraint]:
    return compile_gbnf(VOCABULARY, GBNF)


@cache
def asks_of(kind: Kind, temperature: float) -> list[Ask]:
    """Return one engine request for each choice of a kind."""
    sampling = kind.sampling(temperature)
    return [
        Ask(
            GenerationRequest(
                PROMPT,
                sampling.reseeded(seed_of_choice(sampling.seed, choice)),
                N_TOKENS,
                EOG,
                constraint=_grammar() if kind.grammar else None,
                n_logprobs=kind.n_logprobs,
            ),
            stops_in(alone(PLAIN, temperature)[0].text) if kind.stops else (),
        )
        for choice in range(kind.n)
    ]


def stops_in(text: str, at: int = 50) -> tuple[str, ...]:
    """Return stop strings: three letters from `at` on, those with a '!', and a missing one.

    The letters occur nowhere before.
    """
    while text.index(text[at : at + 3]) != at:
        at += 1
    return (text[at : at + 3], text[at : at + 3] + "!", "\0")
