"""State of one generation inside the engine: its tokens, its KV cache, and its counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.engine.events import DrafterCount, FinishReason, Stats
from server.engine.proposer import CountsBySource
from server.engine.request import GenerationRequest
from server.engine.verify import Verdict
from server.errors import BackendError
from server.llama.backend import PICTURE_IDS
from server.sampling.constraint import Constraint
from server.sampling.sampler import Sampler

NO_SEQ = -1


@dataclass(slots=True)
class Session:
    """One generation. The first n_kv of its tokens are in the KV sequence `seq`.

    A decoding session has one pending token (the last committed token), and before it n_again tokens that are
    evaluated again after a wrong guess (checkpoints.py). A session in prefill has more pending tokens.
    """

    id: int
    request: GenerationRequest
    n_ctx: int
    tokens: list[int] = field(init=False)  # prompt and committed tokens, without dropped ones
    n_prompt: int = field(init=False)
    constraint: Constraint | None = field(init=False)
    sampler: Sampler = field(init=False)
    seq: int = NO_SEQ
    n_kv: int = 0
    n_again: int = 0
    checkpoint_at: int = (
        0  # number of prompt tokens after which the state is kept (checkpoints.py); 0: not kept
    )
    n_intact: int | None = None  # leading cells that equal freshly evaluated ones; None: all
    n_rows: int = 1  # rows of a decoding step without guesses; more than 1 only for beam searches
    n_extra: int = 0  # cells beyond the first n_kv; above 0 only for beam searches
    drafts: bool = False  # the proposer knows the session
    # (position, tokens) of each part dropped because the context was full, in order
    drops: list[tuple[int, list[int]]] = field(default_factory=list[tuple[int, list[int]]])
    # committed tokens that follow `tokens` during a replay (rewind()), to be evaluated again
    ahead: list[int] = field(default_factory=list[int])
    # rows of each step that evaluates tokens of request.begun again, as many as in the steps that generated
    # them; 0: any number
    stride: int = 0
    n_cached: int = 0
    admitted_at: float | None = None
    first_at: float = 0.0
    last_at: float = 0.0
    undrafted_s: float = 0.0  # estimated seconds from first to last token without drafts
    n_steps: int = 0
    accepted_per_step: list[int] = field(default_factory=list[int])
    drafters: dict[str, DrafterCount] = field(default_factory=dict[str, DrafterCount])
    _rewound: tuple[int, list[int]] | None = None  # number of drops to repeat, and `tokens` after them

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.n_prompt = len(self.tokens)
        self.constraint = self.request.constraint() if self.request.constraint else None
        self.sampler = Sampler(self.request.sampling, self._said, self.constraint)
        if self.request.begun:
            self._go_on()
        if self.sampler.mirostat is not None:
            self.sampler.mirostat.mus = self.request.mus

    def _go_on(self) -> None:
        """Continue a reply whose first tokens the request contains.

        Raises BackendError if its constraint does not allow them.
        """
        begun, mirostat = self.request.begun, self.sampler.mirostat
        for token in begun:
            if self.constraint is not None and not self.constraint.allows(token):
                raise BackendError("the reply cannot go on: its grammar does not allow its own tokens")
            self.sampler.accept(token)
        if mirostat is not None and self.request.mu is not None:
            mirostat.mu = self.request.mu
        whole = [*self.tokens, *begun]
        room = self.n_ctx if self.request.n_keep is not None else len(whole)
        self.tokens, self.ahead = whole[:room], whole[room:]

    @property
    def _said(self) -> list[int]:
        """Return the prompt's tokens without positions of pictures, for the penalties of the sampler."""
        if not self.request.pictures:
            return self.tokens
        return [token for token in self.tokens if token < PICTURE_IDS]

    def before_picture(self, length: int) -> int:
        """Return `length`, or the start of a picture if the first `length` tokens end within it."""
        return next((one.start for one in self.request.pictures if one.start < length < one.end), length)

    @property
    def in_picture(self) -> bool:
        """True if the evaluated tokens end within a picture."""
        return self.before_picture(self.n_kv) < self.n_kv

    def with_whole_pictures(self, n: int) -> int:
        """Return how many of the next n tokens to evaluate, so that no picture's rows are split.

        Some rows of a picture must be in one decode. If the n tokens end within such rows, return the number
        of tokens before these rows; if that is 0, the number up to their end.
        """
        end = self.n_kv + n
        for start, stop in (span for one in self.request.pictures for span in one.whole):
            if start < end < stop:
                return (start if start > self.n_kv else stop) - self.n_kv
        return n

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_kv

    @property
    def decodes(self) -> bool:
        """True if the session generates: one token is pending, besides tokens to evaluate again."""
        return self.n_pending == 1 + self.n_again

    def evaluated(self, n: int) -> None:
        """Count the next n tokens as being in the KV cache."""
        self.n_kv += n
        self.n_again = max(0, self.n_again - n)

    @property
    def reports_prompt(self) -> bool:
        """True if all rows need logits: the prompt's logprobs are reported, or `strides` is true."""
        return not self.n_steps and (self.request.prompt_logprobs or self.strides)

    @property
    def strides(self) -> bool:
        """True if the next rows are tokens of request.begun, evaluated again in steps of `stride` rows.

        So their logits are computed in steps with as many rows as when the tokens were generated.
        """
        return self.stride > 0 and not self.n_steps and self.n_kv + self.n_dropped >= self.n_prompt

    @property
    def n_to_evaluate(self) -> int:
        """Return the number of pending tokens to evaluate now: all of them, unless the context is full.

        In a full context the last token waits until others have been dropped.
        """
        return self.n_pending - self.is_full

    @property
    def is_full(self) -> bool:
        """True if the context is full, so that tokens must be dropped before the last one is evaluated."""
        return self.request.n_keep is not None and len(self.tokens) >= self.n_ctx

    @property
    def n_dropped(self) -> int:
        return sum(len(tokens) for _, tokens in self.drops) if self.drops else 0

    @property
    def position(self) -> int:
        """Return the next token's position, counting dropped tokens; it selects the noise of the draw."""
        return len(self.tokens) + self.n_dropped

    @property
    def n_generated(self) -> int:
        return self.position + len(self.ahead) - self.n_prompt

    @property
    def n_reusable(self) -> int:
        """Return how many leading cells may be copied for another session, or kept for the next turn."""
        return self.n_kv if self.n_intact is None else min(self.n_kv, self.n_intact)

    @property
    def n_left(self) -> int:
        """Return the number of tokens that max_tokens and the context still allow."""
        room = self.n_ctx - len(self.tokens)
        if self.request.max_tokens is None:
            return room
        return min(room, self.request.max_tokens - self.n_generated)

    def commit(self, verdict: Verdict, tally: CountsBySource, now: float, undrafted_s: float = 0.0) -> None:
        """Append the tokens of one step and count its drafts.

        Args:
            verdict: The tokens.
            tally: Verified and accepted guesses of the proposal, by source.
            now: Seconds by the engine's clock.
            undrafted_s: Estimated seconds of the step without guesses, as in Plan.
        """
        if not self.n_steps:
            self.first_at = self.last_at = now
        n_later = len(verdict.tokens) - (not self.n_steps)
        self.undrafted_s += undrafted_s * n_later if undrafted_s else now - self.last_at
        self.last_at = now
        self.n_steps += 1
        self.tokens += verdict.tokens
        if tally:
            missing = len(verdict.nodes) + 1 - len(self.accepted_per_step)
            self.accepted_per_step += [0] * missing
            self.accepted_per_step[len(verdict.nodes)] += 1
        for source, (drafted, accepted) in tally.items():
            count = DrafterCount(drafted, accepted)
            self.drafters[source] = self.drafters.get(source, DrafterCount()) + count

    def end_reason(self) -> FinishReason | None:
        """Return why the latest commit ended the session, None if it continues."""
        if self.tokens[-1] in self.request.stop_tokens:
            return "stop"
        goes_on = self.request.n_keep is not None and self.n_generated != self.request.max_tokens
        return None if goes_on or self.n_left > 0 else "length"

    def next_drop(self) -> tuple[int, int]:
        """Return (start, end) of the tokens to drop when the context is full.

        As in llama-server, these are the first half of the evaluated tokens after the first n_keep tokens.
        n_keep is limited so that at least three evaluated tokens follow.
        """
        start = max(0, min(self.request.n_keep or 0, self.n_ctx - 4))
        return start, start + (len(self.tokens) - 1 - start) // 2

    def drop(self, start: int, end: int) -> None:
        """Remove tokens[start:end], and fill the room from `ahead`.

        `tokens` becomes a new list, since the proposer may hold the old one.
        """
        self.n_again = self.checkpoint_at = 0
        self.drops.append((start, self.tokens[start:end]))
        rest = self.tokens[:start] + self.tokens[end:]
        room = self.n_ctx - len(rest)
        self.tokens, self.ahead = rest + self.ahead[:room], self.ahead[room:]
        if self._rewound is not None and self._rewound[0] == len(self.drops):
            self.tokens, self._rewound = self._rewound[1], None

    def rewind(self) -> None:
        """Put all dropped tokens back, so that the session is evaluated again from before its first drop.

        Shifted KV cells cannot be rebuilt directly. At the end of this evaluation `tokens` equals its current
        value.
        """
        if self._rewound is None:
            self._rewound = len(self.drops), self.tokens
        whole = list(self.tokens)
        for start, tokens in reversed(self.drops):
            whole[start:start] = tokens
        whole += self.ahead
        self.tokens, self.ahead, self.drops = whole[: self.n_ctx], whole[self.n_ctx :], []

    def lose_cells(self) -> None:
        """Prepare a session whose cells were released to be evaluated again from its first token.

        A beam search starts again after the prompt: all later tokens move to `ahead`. In a session with
        shifted cells, all dropped tokens are put back (rewind()).
        """
        if self.request.n_beams > 1:
            self.tokens, self.ahead = self.tokens[: self.n_prompt], self.tokens[self.n_prompt :] + self.ahead
        elif self.n_intact is not None:
            self.rewind()
        self.n_intact = None
        self.n_again = 0

    @property
    def is_rewound(self) -> bool:
        return self._rewound is not None

    def stats(self, now: float) -> Stats:
        admitted = now if self.admitted_at is None else self.admitted_at
        first = self.first_at if self.n_steps else now
        return Stats(
            n_prompt=self.n_prompt,
            n_cached=self.n_cached,
            n_predicted=self.n_generated,
            n_steps=self.n_steps,
            prompt_ms=(first - admitted) * 1e3,
            predicted_ms=(self.last_at - self.first_at) * 1e3 if self.n_steps else 0.0,
            undrafted_ms=self.undrafted_s * 1e3,
            n_drafted=sum(count.drafted for count in self.drafters.values()),
            n_accepted=sum(count.accepted for count in self.drafters.values()),
            accepted_per_step=tuple(self.accepted_per_step),
            drafters=dict(self.drafters),
            truncated=bool(self.drops) or self.is_rewound,
            n_dropped=self.n_dropped + len(self.ahead),
        )
