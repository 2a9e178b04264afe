"""What was said before, as the tokens it was said in, so that the next turn finds all of it in the prompt
cache.

A client sends a conversation back as text, and tokens made of that text anew are not always those that were
generated. And some templates show a reply otherwise than it was generated, without its thoughts, say: what
the next turn will begin with is then evaluated while the server has nothing else to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from server.cache.prefix import common_prefix
from server.engine.generate import Generator
from server.engine.request import GenerationRequest
from server.errors import DuoError
from server.llama.backend import Vocabulary
from server.text.template import ChatTemplate, Message
from server.text.transcript import Transcript

logger = logging.getLogger("duo.api")

WORTH_SETTLING = 16  # tokens that the next turn would have to evaluate


@dataclass(frozen=True, slots=True)
class Said:
    """One turn: the prompt as text, as messages and as tokens, the reply as text and as tokens, the one that
    ended it included. salt: who may know of it."""

    text: str
    messages: Sequence[Message]
    prompt: Sequence[int]
    reply: str
    tokens: Sequence[int]
    salt: str


class History:
    """Of all conversations of one server. `tokens_of` is safe from any thread, the rest is for the loop."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate, generator: Generator) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._generator = generator
        self._transcript = Transcript(vocabulary)
        self._tasks: set[asyncio.Task[None]] = set()

    def tokens_of(self, text: str, salt: str) -> list[int]:
        """The tokens of a prompt, those of earlier replies as they were generated."""
        tokens = self._transcript.tokens_for(text, salt)
        vocabulary = self._vocabulary
        if vocabulary.add_bos and vocabulary.bos is not None and tokens[:1] != [vocabulary.bos]:
            tokens.insert(0, vocabulary.bos)
        return tokens

    def recall(self, conversations: Iterable[Sequence[int]]) -> None:
        """Know these, of no salt, as if they had been said since the start."""
        for tokens in conversations:
            self._transcript.recall(tokens, "")

    def ended(self, said: Said, *, settle: bool) -> None:
        """A reply has ended. settle: evaluate what the next turn will begin with."""
        task = asyncio.create_task(self._keep(said, settle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def idle(self) -> bool:
        """Whether all that has ended is remembered, and evaluated where that is worth it."""
        return not self._tasks

    async def close(self) -> None:
        """Leave what is not finished."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, said: Said, settle: bool) -> None:
        try:
            tokens = await asyncio.to_thread(self._remember, said, settle)
            if tokens:
                request = GenerationRequest(tokens, salt=said.salt, precompute=True)
                async for _ in self._generator.submit(request):
                    pass
        except DuoError:
            pass  # too busy, or too long: the next turn evaluates it itself
        except Exception:
            logger.exception("a reply is not remembered")

    def _remember(self, said: Said, settle: bool) -> list[int]:
        """Returns what is worth evaluating beforehand."""
        self._transcript.remember(said.text, said.prompt, said.tokens, said.salt)
        if not settle:
            return []
        messages, reply = said.messages, said.reply
        if messages[-1]["role"] == "assistant":  # whose message the reply went on with
            messages, reply = messages[:-1], str(messages[-1].get("content") or "") + reply
        text = self._template.settled(messages, {"role": "assistant", "content": reply})
        if text is None:
            return []
        tokens = self.tokens_of(text, said.salt)
        n_known = common_prefix([*said.prompt, *said.tokens], tokens)
        return tokens if len(tokens) - n_known >= WORTH_SETTLING else []
