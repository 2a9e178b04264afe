"""Count totals since the server's start from the engine's events, for /metrics."""

from __future__ import annotations

from collections import Counter

from server.engine.events import (
    Committed,
    DrafterCount,
    Event,
    Failed,
    Finished,
    Progress,
    Started,
    Stats,
    Tally,
)

MAX_SOURCES = 256
"""Maximum drafters that are counted: names change with every restart, so their number is unlimited."""


class Traffic(Tally):
    """Observes the engine's events. Read it on the event loop that receives them.

    Counts only grow. Of more than MAX_SOURCES drafters, those that drafted least recently are dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n_prompt = 0  # prompt tokens evaluated
        self.n_cached = 0  # prompt tokens reused
        self.n_embedded = 0  # tokens of requests for embeddings
        self.n_embeddings = 0  # requests for embeddings
        self.n_drafting = 0  # steps with drafts, counted for each request in them
        self.accepted_at: Counter[int] = Counter()  # accepted tokens, by position in the draft
        self.n_longest = 0  # largest number of tokens of a prompt with its reply
        self.prompt_s = 0.0
        self.predicted_s = 0.0
        self.endings: Counter[str] = Counter()
        self.sources: dict[str, DrafterCount] = {}
        self._unprompted: dict[int, Started] = {}  # generations without a token yet

    def __call__(self, id: int, event: Event) -> None:
        match event:
            case Started():
                self._unprompted[id] = event
            case Committed():
                if (started := self._unprompted.pop(id, None)) is not None:
                    self.n_prompt += started.n_prompt - started.n_cached
                    self.n_cached += started.n_cached
                self.count(event)
                if event.n_drafted:
                    self.n_drafting += 1
                    self.accepted_at.update(range(event.n_accepted))
            case Finished():
                self._unprompted.pop(id, None)
                self.endings[event.reason] += 1
                self._add_stats(event.stats)
            case Failed():
                self._unprompted.pop(id, None)
                self.endings["failed"] += 1
            case Progress():
                pass

    def embedded(self, n_tokens: int) -> None:
        self.n_embedded += n_tokens
        self.n_embeddings += 1

    def _add_stats(self, stats: Stats) -> None:
        self.n_longest = max(self.n_longest, stats.n_prompt + stats.n_predicted)
        self.prompt_s += stats.prompt_ms / 1e3
        self.predicted_s += stats.predicted_ms / 1e3
        for name, count in stats.drafters.items():
            self.sources[name] = self.sources.pop(name, DrafterCount()) + count  # now the latest
        while len(self.sources) > MAX_SOURCES:
            del self.sources[next(iter(self.sources))]
