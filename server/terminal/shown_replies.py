"""Print streaming replies in duo chat, with guessed text in its drafter's colour."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from rich.console import Console
from rich.text import Text

from server.terminal.dialogue import Dialogue

COLOURS = ("green", "blue", "yellow", "magenta")
SOURCES = {
    "draft": "the draft model beside the model",
    "lookup": "the text above",
    "prediction": "the prediction that came with the request",
    "grammar": "the required format",
}


class ShownReplies:
    """Sends questions, and prints the replies."""

    def __init__(self, console: Console, dialogue: Dialogue) -> None:
        self._console = console
        self._dialogue = dialogue
        self._guessers: list[str] = []  # in the order of their colours

    def ask(self, question: str) -> None:
        """Send a question, print the reply and its speed; Ctrl-C ends the reply. Raises DuoError."""
        timings: dict[str, Any] | None = None
        counts = Counter[str]()
        thinking = False
        with contextlib.suppress(KeyboardInterrupt):
            for chunk in self._dialogue.ask(question):
                timings = chunk.get("timings") or timings
                for choice in chunk["choices"]:
                    tokens = choice.get("sources") or ()
                    counts.update(one["source"] for one in tokens if one["source"])
                    thinking = self._show_delta(choice["delta"], tokens, thinking=thinking)
        self._console.print()
        if timings:
            self._console.print(Text(summary(timings), "dim"))
        if counts:
            self._console.print(self._legend_text(counts))

    def _show_delta(self, delta: Any, tokens: Any, *, thinking: bool) -> bool:
        """Print a delta; return True if the text so far ends with reasoning.

        thinking: True if the text before the delta ends with reasoning. tokens: Text and source of each token
        in the delta's content, if known.
        """
        thought, text = delta.get("reasoning_content"), delta.get("content")
        if thought:
            self._console.print(Text(thought, "dim italic"), end="", soft_wrap=True)
        if not text:
            return bool(thought) or thinking
        if thinking or thought:
            self._console.print("\n")
        self._console.print(self._coloured_text(text, tokens), end="", soft_wrap=True)
        return False

    def _coloured_text(self, text: str, tokens: Any) -> Text:
        if "".join(one["text"] for one in tokens) != text:
            return Text(text)
        parts = [(one["text"], self._colour_of(one["source"]) if one["source"] else "") for one in tokens]
        return Text.assemble(*parts)

    def _colour_of(self, source: str) -> str:
        if source not in self._guessers:
            self._guessers.append(source)
        return COLOURS[self._guessers.index(source) % len(COLOURS)]

    def _legend_text(self, counts: Counter[str]) -> Text:
        names = {**SOURCES, **self._dialogue.drafters()}
        parts = [(f"{names.get(one, one)} {n}", self._colour_of(one)) for one, n in counts.most_common()]
        told = [piece for part in parts for piece in (part, ", ")][:-1]
        return Text.assemble(("guessed by ", "dim"), *told, (" tokens", "dim"))


def summary(timings: dict[str, Any]) -> str:
    """Return one line with a reply's numbers of tokens and speeds."""
    line = f"{timings['predicted_n']} tokens at {timings['predicted_per_second']:.0f} tokens/s"
    if plain := timings.get("undrafted_per_second"):
        line += f", {timings['predicted_per_second'] / plain:.1f} times as fast as without drafts (estimate)"
    line += f" · {timings['cache_n']} of {timings['cache_n'] + timings['prompt_n']} prompt tokens reused"
    if timings.get("draft_n"):
        line += f" · {timings['draft_n_accepted']} of {timings['draft_n']} guesses were right"
    return line
