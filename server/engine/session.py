"""One generation inside the engine: its tokens, what of them is in the KV cache, and its counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.engine.events import DrafterCount, FinishReason, Stats
from server.engine.proposer import Proposal
from server.engine.request import GenerationRequest
from server.engine.verify import Verdict
from server.sampling.constraint import Constraint
from server.sampling.sampler import Sampler

NO_SEQ = -1


@dataclass(slots=True)
class Session:
    """tokens: the prompt and all committed ones. The first n_kv of them are in the KV sequence `seq`.

    A session that decodes has exactly one token pending (the last committed one); one in prefill has more.
    """

    id: int
    request: GenerationRequest
    n_ctx: int
    tokens: list[int] = field(init=False)
    n_prompt: int = field(init=False)
    constraint: Constraint | None = field(init=False)
    sampler: Sampler = field(init=False)
    seq: int = NO_SEQ
    n_kv: int = 0
    n_cached: int = 0
    admitted_at: float | None = None
    first_at: float = 0.0
    last_at: float = 0.0
    n_steps: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    accepted_per_step: list[int] = field(default_factory=list[int])
    drafters: dict[str, DrafterCount] = field(default_factory=dict[str, DrafterCount])

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.n_prompt = len(self.tokens)
        self.constraint = self.request.constraint() if self.request.constraint else None
        self.sampler = Sampler(self.request.sampling, self.tokens, self.constraint)

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_kv

    @property
    def n_left(self) -> int:
        """How many more tokens may be committed: max_tokens and the context set the bound."""
        room = self.n_ctx - len(self.tokens)
        if self.request.max_tokens is None:
            return room
        return min(room, self.request.max_tokens - (len(self.tokens) - self.n_prompt))

    def commit(self, verdict: Verdict, proposal: Proposal, now: float) -> None:
        """Append one step's tokens and count what became of its drafts."""
        if not self.n_steps:
            self.first_at = now
        self.last_at = now
        self.n_steps += 1
        self.tokens += verdict.tokens
        self.n_drafted += len(proposal)
        self.n_accepted += len(verdict.nodes)
        if proposal:
            missing = len(verdict.nodes) + 1 - len(self.accepted_per_step)
            self.accepted_per_step += [0] * missing
            self.accepted_per_step[len(verdict.nodes)] += 1
        for node, source in enumerate(proposal.sources):
            count = self.drafters.get(source, DrafterCount())
            accepted = count.accepted + (node in verdict.nodes)
            self.drafters[source] = DrafterCount(count.drafted + 1, accepted)

    def end_reason(self) -> FinishReason | None:
        """Why the session is over after a commit, None while it is not."""
        if self.tokens[-1] in self.request.stop_tokens:
            return "stop"
        return None if self.n_left > 0 else "length"

    def stats(self, now: float) -> Stats:
        """Counts and times so far."""
        admitted = now if self.admitted_at is None else self.admitted_at
        first = self.first_at if self.n_steps else now
        return Stats(
            n_prompt=self.n_prompt,
            n_cached=self.n_cached,
            n_predicted=len(self.tokens) - self.n_prompt,
            n_steps=self.n_steps,
            prompt_ms=(first - admitted) * 1e3,
            predicted_ms=(self.last_at - self.first_at) * 1e3 if self.n_steps else 0.0,
            n_drafted=self.n_drafted,
            n_accepted=self.n_accepted,
            accepted_per_step=tuple(self.accepted_per_step),
            drafters=dict(self.drafters),
        )
