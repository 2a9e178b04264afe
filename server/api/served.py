"""What the routes serve: handed to them typed, through the lifespan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from server.api.history import History
from server.api.traffic import Traffic
from server.cache.named import NamedFiles
from server.cache.snapshots import NOTHING, Counters
from server.engine.generate import Generator
from server.engine.thread import Command
from server.llama.backend import Vocabulary
from server.sampling.constraint import Constraint
from server.sampling.params import SamplingParams
from server.text.template import ChatTemplate

TOKEN_COUNTS = ("drafted", "accepted")
"""What DrafterHealth.counts has in tokens; all others are messages, by what became of them."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The model as /v1/models and the page show it. created: Unix seconds. note: a remark for the page."""

    id: str
    created: int
    n_ctx: int
    n_params: int
    description: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class DrafterHealth:
    """One drafter on the bus. reason: why it was refused. counts: what became of what it sent."""

    id: str
    model: str
    state: Literal["accepted", "refused"]
    reason: str | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class ExactnessHealth:
    """tier: of requests that do not say; stable_width: rows of a step under width-stable. probe: what duo
    probe found about this model on this machine, None if it was not run."""

    tier: Literal["default", "width-stable"]
    stable_width: int
    probe: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GateHealth:
    """What drafts are weighed with. rate: tokens per second of late, all sessions together; step_ms: time of
    a decode by its rows, in milliseconds; width: rows that steps are padded to, 0: none; steady_ms: time of a
    decode among equal ones."""

    rate: float
    step_ms: dict[int, float]
    width: int = 0
    steady_ms: dict[int, float] = field(default_factory=dict[int, float])


@dataclass(frozen=True, slots=True)
class Health:
    """'stuck': there is work and no progress. step_python_us: Python's median share of a one-session step."""

    status: Literal["ok", "loading", "stuck"]
    slots_total: int
    slots_busy: int
    queued: int
    step_python_us: float
    drafters: Sequence[DrafterHealth] = ()
    exactness: ExactnessHealth = field(default_factory=lambda: ExactnessHealth("default", 8))
    gate: GateHealth = field(default_factory=lambda: GateHealth(0.0, {}))
    draft_mode: Literal["async", "sync"] = "async"

    def as_json(self) -> dict[str, Any]:
        """The body of GET /health."""
        return {
            "status": self.status,
            "slots": {"total": self.slots_total, "busy": self.slots_busy},
            "queued": self.queued,
            "engine": {"step_python_us": round(self.step_python_us, 1)},
            "draft_mode": self.draft_mode,
            "exactness": {
                "tier": self.exactness.tier,
                "stable_width": self.exactness.stable_width,
                "probe": self.exactness.probe,
            },
            "gate": {
                "tokens_per_second": round(self.gate.rate, 1),
                "step_ms": {str(rows): round(ms, 3) for rows, ms in self.gate.step_ms.items()},
                "width": self.gate.width,
                "steady_ms": {str(rows): round(ms, 3) for rows, ms in self.gate.steady_ms.items()},
            },
            "drafters": [
                {"id": d.id, "model": d.model, "state": d.state, "reason": d.reason, "counts": d.counts}
                for d in self.drafters
            ],
        }


@dataclass(frozen=True, slots=True)
class Served:
    """Everything a route may need. fingerprint: OpenAI's system_fingerprint. grammars compiles a GBNF text
    into a maker of fresh grammar states, raising InvalidRequestError that names the place; None: there are
    no grammars. traffic must observe the generator's events for /metrics to count. cached:
    what the tiers below the KV cache hold. command has the engine's
    thread do something; None: there are no slots to see. slot_files: where they are saved, None: nowhere."""

    generator: Generator
    vocabulary: Vocabulary
    template: ChatTemplate
    model: ModelCard
    defaults: SamplingParams
    health: Callable[[], Health]
    fingerprint: str
    grammars: Callable[[str], Callable[[], Constraint]] | None = None
    traffic: Traffic = field(default_factory=Traffic)
    command: Callable[[Command], None] | None = None
    slot_files: NamedFiles | None = None
    cached: Callable[[], Counters] = lambda: NOTHING
    history: History = field(init=False)

    def __post_init__(self) -> None:
        history = History(self.vocabulary, self.template, self.generator)
        object.__setattr__(self, "history", history)  # derived; frozen for everybody else
