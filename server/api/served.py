"""What the routes serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from server.api.cache_misses import PromptMemory
from server.api.held_schemas import HeldSchemas
from server.api.history import History
from server.api.pacing import FRAME_S
from server.api.prompt_work import PromptWork
from server.api.response_store import ResponseStore
from server.api.rpc.handles import Handles
from server.api.traffic import Traffic
from server.cache.catalogue import TierCounts
from server.cache.named import NamedFiles
from server.engine.engine import Engine
from server.engine.generate import Generator
from server.grammar.compiler import Compiler
from server.llama.backend import Vocabulary
from server.llama.embedding_worker import EmbeddingWorker
from server.sampling.params import SamplingParams
from server.tenants import Places
from server.text.room import Room
from server.text.template import ChatTemplate

T = TypeVar("T")

Part: TypeAlias = Literal["slots", "metrics", "ui"]
DraftMode: TypeAlias = Literal["async", "sync"]

TOKEN_COUNTS = ("drafted", "accepted")
"""What DrafterHealth.counts has in tokens; all others are messages, by what became of them."""


ANY = "*"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model in /v1/models, /props and the page. created: Unix seconds. note: shown in the page. aliases:
    other names, ANY for all. file: name of its file. n_bytes: of its weights."""

    id: str
    created: int
    n_ctx: int
    n_params: int
    description: str
    note: str | None = None
    aliases: Sequence[str] = ()
    file: str = ""
    n_vocab: int = 0
    n_bytes: int = 0
    quantization: str | None = None

    def is_called(self, name: str) -> bool:
        return name in (self.id, "default", *self.aliases) or ANY in self.aliases


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model that embeds or ranks, which may be the one that generates."""

    worker: EmbeddingWorker
    card: ModelCard


@dataclass(frozen=True, slots=True)
class DrafterHealth:
    """One drafter on the bus. reason: of its refusal. counts: its messages and tokens by outcome. name: what
    people call it. guess_ms: milliseconds of a guess by its latest message, 0 if unknown. rests: why it is
    given no conversation, None if it does not rest."""

    id: str
    model: str
    state: Literal["accepted", "refused"]
    reason: str | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    name: str = ""
    guess_ms: float = 0.0
    rests: str | None = None


@dataclass(frozen=True, slots=True)
class ExactnessHealth:
    """tier: the default of requests; stable_width: rows of a step under width-stable. probe: what duo probe
    found on this machine, None if it did not run."""

    tier: Literal["default", "width-stable"]
    stable_width: int
    probe: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GateHealth:
    """What drafts are weighed with. tokens_per_second: recent rate of all sessions; step_ms: milliseconds of
    a decode by rows; width: rows that the latest step was padded to, 0 for none; steady_ms: milliseconds of
    a decode among others of its width."""

    tokens_per_second: float = 0.0
    step_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    width: int = 0
    steady_ms: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Health:
    """status 'stuck': there is work and no progress; 'draining': replies end, no request is taken.
    step_python_us: median microseconds of Python in a one-session step. n_decodes: of the model since the
    start; n_decoding: requests in them, counted in each. cells: of the KV cache in use, and in all. reason:
    why it is stuck, if it is."""

    status: Literal["ok", "loading", "draining", "stuck"]
    slots_total: int
    slots_busy: int
    queued: int
    step_python_us: float
    drafters: Sequence[DrafterHealth] = ()
    exactness: ExactnessHealth = field(default_factory=lambda: ExactnessHealth("default", 8))
    gate: GateHealth = field(default_factory=GateHealth)
    draft_mode: DraftMode = "async"
    n_decodes: int = 0
    n_decoding: int = 0
    cells: tuple[int, int] = (0, 0)
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The body of GET /health."""
        return {
            "status": self.status,
            **({"reason": self.reason} if self.reason else {}),
            "slots": {"total": self.slots_total, "busy": self.slots_busy},
            "queued": self.queued,
            "engine": {"step_python_us": round(self.step_python_us, 1)},
            "draft_mode": self.draft_mode,
            "exactness": asdict(self.exactness),
            "gate": asdict(self.gate),
            "drafters": [asdict(drafter) for drafter in self.drafters],
        }


class AskEngine(Protocol):
    """Runs a question on the engine's thread, see EngineThread.ask."""

    async def __call__(self, question: Callable[[Engine], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Served:
    """health: of the engine. fingerprint: OpenAI's system_fingerprint. grammars: None if replies cannot be
    constrained. traffic: must observe the generator's events. ask: None if there are no slots. slot_files:
    None if slots are not saved. cached: counts of the tiers below the KV cache. embedding, reranking:
    None if nothing embeds or ranks. seed, max_tokens, reasoning_budget, reasoning_format, template_variables,
    context_shift, verbose: defaults of requests; None for a random seed and no limit, -1 for thoughts without
    one. frame_s: of streams, as Pace takes it; 0: each step is told at once. hidden: what is not served.
    places: the generator's, for requests. adapters: files and scales of LoRA adapters."""

    generator: Generator
    vocabulary: Vocabulary
    template: ChatTemplate
    model: ModelCard
    defaults: SamplingParams
    health: Callable[[], Health]
    fingerprint: str
    grammars: Compiler | None = None
    traffic: Traffic = field(default_factory=Traffic)
    ask: AskEngine | None = None
    slot_files: NamedFiles | None = None
    cached: Callable[[], TierCounts] = TierCounts
    embedding: Embedding | None = None
    reranking: Embedding | None = None
    seed: int | None = None
    max_tokens: int | None = None
    reasoning_budget: int = -1
    reasoning_format: str = "auto"
    template_variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context_shift: bool = False
    verbose: bool = False
    frame_s: float = FRAME_S
    hidden: frozenset[Part] = frozenset()
    adapters: Sequence[tuple[str, float]] = ()
    responses: ResponseStore = field(default_factory=ResponseStore)
    prompts: PromptMemory = field(default_factory=PromptMemory)
    handles: Handles = field(default_factory=Handles)
    prompt_work: PromptWork = field(default_factory=PromptWork)
    places: Places = field(default_factory=lambda: Places(1 << 30))
    history: History = field(init=False)
    held_schemas: HeldSchemas | None = field(init=False)

    def __post_init__(self) -> None:
        held = None if self.grammars is None else HeldSchemas(self.grammars)
        object.__setattr__(self, "held_schemas", held)
        object.__setattr__(self, "history", History(self))  # derived; frozen for everybody else

    def state(self) -> Health:
        """The engine's health, and that of the prompt threads."""
        health, work = self.health(), self.prompt_work
        health = replace(health, queued=health.queued + work.n_waiting)
        if health.reason is None and (reason := work.stuck()):
            return replace(health, status="stuck", reason=reason)
        return health

    @property
    def room(self) -> Room:
        return Room(self.model.n_ctx, self.vocabulary.longest)

    @property
    def models(self) -> list[ModelCard]:
        """The generating model, and those that embed and rank if they are others."""
        cards = [self.model, *(one.card for one in (self.embedding, self.reranking) if one)]
        return list({card.id: card for card in reversed(cards)}.values())[::-1]
