"""The objects that routes use: models, engine, defaults, stores, and the server's health."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from server.api.background import BackgroundReplies
from server.api.cache_misses import PromptMemory
from server.api.enforceable_schemas import EnforceableSchemas
from server.api.history import History
from server.api.lending import Lending
from server.api.pacing import FRAME_S
from server.api.prompt_work import PromptWork
from server.api.rpc.handles import Handles
from server.api.traffic import Traffic
from server.api.unseen import TEXT_ONLY, Senses
from server.cache.catalogue import TierCounts
from server.cache.named import NamedFiles
from server.engine.engine import Engine
from server.engine.generate import Generator
from server.engine.request import PictureSpan
from server.grammar.compiler import Compiler
from server.llama.backend import Vocabulary
from server.llama.embedding_worker import EmbeddingWorker
from server.pictures.fetching import RemotePictures
from server.pictures.registry import Pictures
from server.replies.memory import MemoryStore
from server.replies.store import ReplyStore
from server.sampling.params import SamplingParams
from server.tenants import Places
from server.text.room import Room
from server.text.template import ChatTemplate

T = TypeVar("T")

Part: TypeAlias = Literal["slots", "metrics", "ui"]
DraftMode: TypeAlias = Literal["async", "sync"]

TOKEN_COUNTS = ("drafted", "accepted")
"""Keys of DrafterHealth.counts that count tokens; all others count messages by outcome."""


ANY = "*"
"""Alias that makes a model answer to every name."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model in /v1/models, /props and the chat page."""

    id: str
    created: int  # Unix seconds
    n_ctx: int
    n_params: int
    description: str
    note: str | None = None  # text shown on the page
    aliases: Sequence[str] = ()  # other names; ANY: every name
    file: str = ""  # name of its file
    n_vocab: int = 0
    n_bytes: int = 0  # bytes of its weights
    quantization: str | None = None

    def is_called(self, name: str) -> bool:
        return name in (self.id, "default", *self.aliases) or ANY in self.aliases


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model that embeds or ranks; it may be the generating model."""

    worker: EmbeddingWorker
    card: ModelCard


@dataclass(frozen=True, slots=True)
class DrafterHealth:
    """One drafter on the bus."""

    id: str
    model: str
    state: Literal["accepted", "refused"]
    reason: str | None = None  # why it was refused
    counts: dict[str, int] = field(default_factory=dict[str, int])  # messages and tokens by outcome
    name: str = ""  # name shown to people
    guess_ms: float = 0.0  # milliseconds per guess, by its latest message; 0: unknown
    rests: str | None = None  # why it is paused, None if it is not paused
    kind: str = "model"  # model, head, engine, browser, lookup or replay


@dataclass(frozen=True, slots=True)
class ExactnessHealth:
    """The exactness of replies, for /health."""

    tier: Literal["default", "width-stable"]  # default of requests
    stable_width: int  # rows of a step under width-stable
    probe: dict[str, Any] | None = None  # result of `duo probe` on this machine; None if it did not run


@dataclass(frozen=True, slots=True)
class GateHealth:
    """The measurements by which the server decides whether drafts pay, for /health."""

    tokens_per_second: float = 0.0  # recent rate of all sessions
    # milliseconds of a decode, by its number of rows
    step_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    width: int = 0  # rows that the latest step was padded to; 0: none
    # milliseconds of a decode whose previous decodes had the same number of rows, by that number
    steady_ms: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Health:
    """State of the engine.

    stuck: there is work, but no progress. draining: replies end, and new requests are refused.
    """

    status: Literal["ok", "loading", "draining", "stuck"]
    slots_total: int
    slots_busy: int
    queued: int
    step_python_us: float  # median microseconds of Python in a step of one session
    drafters: Sequence[DrafterHealth] = ()
    exactness: ExactnessHealth = field(default_factory=lambda: ExactnessHealth("default", 8))
    gate: GateHealth = field(default_factory=GateHealth)
    draft_mode: DraftMode = "async"
    n_decodes: int = 0  # decodes of the model since the start
    n_decoding: int = 0  # requests in these decodes, each counted once per decode
    cells: tuple[int, int] = (0, 0)  # cells of the KV cache: in use, and total
    reason: str | None = None  # why the engine is stuck, None if it is not
    pool: Sequence[str] | None = None  # leads that take up each other's replies; None: no lead does

    def as_json(self) -> dict[str, Any]:
        """Return the body of GET /health."""
        return {
            "status": self.status,
            **({"reason": self.reason} if self.reason else {}),
            **({"pool": self.pool} if self.pool is not None else {}),
            "slots": {"total": self.slots_total, "busy": self.slots_busy},
            "queued": self.queued,
            "engine": {"step_python_us": round(self.step_python_us, 1)},
            "draft_mode": self.draft_mode,
            "exactness": asdict(self.exactness),
            "gate": asdict(self.gate),
            "drafters": [asdict(drafter) for drafter in self.drafters],
        }


class AskEngine(Protocol):
    """Calls a function with the engine, on the engine's thread; returns its result. See EngineThread.ask."""

    async def __call__(self, question: Callable[[Engine], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that the routes use."""

    generator: Generator
    vocabulary: Vocabulary
    template: ChatTemplate
    model: ModelCard
    defaults: SamplingParams
    health: Callable[[], Health]  # returns the engine's health
    fingerprint: str  # OpenAI's system_fingerprint
    pictures: Pictures | None = None  # None if the model reads neither pictures nor sounds
    remote: RemotePictures | None = None  # None if pictures are not fetched
    grammars: Compiler | None = None  # None if replies cannot be constrained
    traffic: Traffic = field(default_factory=Traffic)  # must observe the generator's events
    ask: AskEngine | None = None  # None if there are no slots
    slot_files: NamedFiles | None = None  # None if slots cannot be saved to files
    cached: Callable[[], TierCounts] = TierCounts  # counts of the tiers below the KV cache
    embedding: Embedding | None = None  # None if nothing embeds
    reranking: Embedding | None = None  # None if nothing ranks
    seed: int | None = None  # default of requests; None: random
    max_tokens: int | None = None  # default of requests; None: no limit
    reasoning_budget: int = -1  # default maximum tokens of thoughts; -1: no limit
    reasoning_format: str = "auto"
    template_variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context_shift: bool = False
    verbose: bool = False
    frame_s: float = FRAME_S  # seconds of a stream's frame, see Pace; 0: send each step at once
    hidden: frozenset[Part] = frozenset()  # parts of the server that are switched off
    adapters: Sequence[tuple[str, float]] = ()  # files and scales of LoRA adapters
    replies: ReplyStore = field(default_factory=MemoryStore)
    background: BackgroundReplies = field(default_factory=BackgroundReplies)
    prompts: PromptMemory = field(default_factory=PromptMemory)
    handles: Handles = field(default_factory=Handles)
    prompt_work: PromptWork = field(default_factory=PromptWork)
    lending: Lending | None = None  # None if no browser can draft
    places: Places = field(default_factory=lambda: Places(1 << 30))  # admits requests to the engine's queue
    history: History = field(init=False)
    enforceable_schemas: EnforceableSchemas | None = field(init=False)

    def __post_init__(self) -> None:
        held = None if self.grammars is None else EnforceableSchemas(self.grammars)
        object.__setattr__(self, "enforceable_schemas", held)
        object.__setattr__(self, "history", History(self))  # derived from self; the class is frozen

    def state(self) -> Health:
        """Return the health of the engine and of the prompt threads."""
        health, work = self.health(), self.prompt_work
        health = replace(health, queued=health.queued + work.n_waiting, pool=self.replies.members)
        if health.reason is None and (reason := work.stuck()):
            return replace(health, status="stuck", reason=reason)
        return health

    def spans(self, tokens: Sequence[int]) -> tuple[PictureSpan, ...]:
        """Return the positions of a prompt's pictures. Keep the result as long as the pictures are needed."""
        return () if self.pictures is None else self.pictures.spans(tokens)

    @property
    def senses(self) -> Senses:
        known = self.pictures
        return TEXT_ONLY if known is None else Senses(known.sees, known.hears)

    @property
    def room(self) -> Room:
        return Room(self.model.n_ctx, self.vocabulary.longest)

    @property
    def models(self) -> list[ModelCard]:
        """Return the cards of all models without repetition, the generating model first."""
        cards = [self.model, *(one.card for one in (self.embedding, self.reranking) if one)]
        return list({card.id: card for card in reversed(cards)}.values())[::-1]
