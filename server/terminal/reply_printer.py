"""Print replies in the lead's terminal while they are generated, with accepted drafts highlighted."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from server.engine.events import Committed, Event, Failed, Finished, Progress, Started, Stats
from server.llama.backend import Vocabulary
from server.text.detokenize import Detokenizer

ACCEPTED = "black on green3"
REJECTED = "strike red"


class ReplyPrinter:
    """Prints the replies in the engine's events, one at a time. show_rejected: print rejected drafts too."""

    def __init__(self, console: Console, vocabulary: Vocabulary, *, show_rejected: bool) -> None:
        self._console = console
        self._vocabulary = vocabulary
        self._show_rejected = show_rejected
        self._pending: dict[int, list[Event]] = {}
        self._text = Detokenizer(vocabulary)

    def __call__(self, id: int, event: Event) -> None:
        self._pending.setdefault(id, []).append(event)
        while self._pending:
            current, events = next(iter(self._pending.items()))
            for one in events:
                self._show_event(one)
            if not (events and isinstance(events[-1], Finished | Failed)):
                events.clear()
                return
            del self._pending[current]

    def _show_event(self, event: Event) -> None:
        match event:
            case Started():
                self._text = Detokenizer(self._vocabulary)
            case Committed():
                self._show_tokens(event)
            case Finished():
                self._console.print()
                for line in summary(event.stats):
                    self._console.print(Text("  " + line, "dim"), highlight=False)
            case Failed():
                self._console.print(Text(f"\n  failed: {event.error.message}", "red"))
            case Progress():
                pass

    def _show_tokens(self, event: Committed) -> None:
        accepted = [t for t, source in zip(event.tokens, event.sources, strict=True) if source]
        line = Text()
        for token in accepted:
            line.append(self._text.feed(token), ACCEPTED)
        if self._show_rejected:
            for token in event.rejected:
                line.append(self._vocabulary.piece(token).decode(errors="replace"), REJECTED)
        for token in event.tokens[len(accepted) :]:
            line.append(self._text.feed(token))
        self._console.print(line, end="", soft_wrap=True)


def summary(stats: Stats) -> list[str]:
    """Return the counts and speeds of a reply, in lines for a person."""
    n_encoded = stats.n_prompt - stats.n_cached
    lines = [
        f"prompt   {stats.n_prompt} tokens: {stats.n_cached} reused, {n_encoded} encoded"
        f" at {_rate_text(n_encoded, stats.prompt_ms)} tokens/s",
        f"reply    {stats.n_predicted} tokens in {stats.n_steps} steps, decoded"
        f" at {_rate_text(stats.n_predicted - 1, stats.predicted_ms)} tokens/s",
    ]
    if stats.n_drafted:
        share = 100 * stats.n_accepted / stats.n_drafted
        lines.append(f"drafts   {stats.n_drafted} checked, {stats.n_accepted} accepted ({share:.0f} %)")
        for name, count in stats.drafters.items():
            lines.append(f"         {name}: {count.accepted} of {count.drafted}")
    else:
        lines.append("drafts   none")
    return lines


def _rate_text(n: int, ms: float) -> str:
    return f"{n / ms * 1e3:.0f}" if ms > 0 and n > 0 else "-"
