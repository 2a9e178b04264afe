"""One prompt, which the stages pass on and complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from server.engine.request import GenerationRequest
from server.grammar.compiler import Start
from server.pictures.picture import Picture
from server.text.reply_format import PLAIN, ReplyFormat
from server.text.template import BARE, Setting, begun_by

if TYPE_CHECKING:
    from server.api.choices import ReplyChoice
    from server.api.history import History


@dataclass(frozen=True, slots=True)
class Prompted:
    """One prompt (text, tokens, pictures), and a request to the engine for each reply to it."""

    text: str
    tokens: list[int] = field(default_factory=list[int])
    messages: Sequence[dict[str, Any]] = ()  # messages from which the text was rendered, if any
    setting: Setting = BARE  # other inputs of the template
    form: ReplyFormat = PLAIN  # format in which replies are read
    written: ReplyFormat = PLAIN  # format in which the model may write
    constraint: Start | None = None  # constraint of replies; None: any text
    requests: list[GenerationRequest] = field(default_factory=list[GenerationRequest])
    pictures: Sequence[Picture] = ()  # pictures in the text; without a reference they are forgotten
    whole: bool = True  # `tokens` covers the whole text, so later prompts may begin with it

    @property
    def begins(self) -> bool:
        """True if a reply begins a message; False if it continues a message, or a text without messages."""
        begun = begun_by(self.messages, self.setting)
        return bool(self.messages) and not (begun and begun.text)

    def remember(self, history: History, choices: Sequence[ReplyChoice]) -> None:
        """Pass the ended replies to the history, because a later prompt may continue one.

        Nothing is passed on if `whole` is False. Truncated replies are left out.

        Args:
            history: Remembers the replies.
            choices: The replies, in the order of `requests`. All must have ended.
        """
        for choice, request in zip(choices, self.requests, strict=True):
            if self.whole and not choice.stats().truncated:
                history.ended(self, request, choice.said, prefill=bool(self.messages) and len(choices) == 1)
