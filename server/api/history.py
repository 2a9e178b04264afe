"""The exact tokens of earlier replies, so that the next turn finds them in the prompt cache.

A client sends a conversation back as text, and tokenising it again may give other tokens than were generated.
Some templates also show an earlier reply differently, without its thoughts for example: then the beginning of
the next prompt is evaluated while the server is idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from server.cache.prefix import common_prefix
from server.engine.request import GenerationRequest
from server.errors import DuoError
from server.llama.backend import Vocabulary
from server.text.message import Message
from server.text.template import continued
from server.text.transcript import Transcript

if TYPE_CHECKING:
    from server.api.engine_requests import Prompted
    from server.api.served import Served

logger = logging.getLogger("duo.api")

WORTH_SETTLING = 16  # tokens that the next turn would have to evaluate


def after_bos(vocabulary: Vocabulary, tokens: list[int]) -> list[int]:
    """The tokens of a prompt, which begins with BOS if the model wants that."""
    if vocabulary.add_bos and vocabulary.bos is not None and tokens[:1] != [vocabulary.bos]:
        return [vocabulary.bos, *tokens]
    return tokens


class History:
    """The conversations of one server. `tokens_of` is safe from any thread, the rest is for the event
    loop."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._transcript = Transcript(served.vocabulary)
        self._tasks: set[asyncio.Task[None]] = set()

    def tokens_of(self, text: str, salt: str, param: str = "messages") -> list[int]:
        """The tokens of a prompt, with those of earlier replies as they were generated. Raises
        ContextOverflowError about this param, if possible before tokenising."""
        self._served.room.check_bytes(len(text.encode()), param)
        tokens = after_bos(self._served.vocabulary, self._transcript.tokens_for(text, salt))
        self._served.room.check_tokens(len(tokens), param)
        return tokens

    def recall(self, conversations: Iterable[Sequence[int]], salt: str = "") -> None:
        """Add conversations from before the start, all of one salt."""
        for tokens in conversations:
            self._transcript.recall(tokens, salt)

    def ended(
        self,
        asked: Prompted,
        request: GenerationRequest,
        said: tuple[Message, Sequence[int]],
        *,
        settle: bool,
    ) -> None:
        """Remember what was said to a request of this prompt: a message, and its tokens with the stop token.
        settle: also evaluate the beginning of the next turn."""
        remember = partial(self._remember, asked, request, said, settle)
        # in a context of its own: it is none of the costs of the request that has ended
        task = asyncio.create_task(self._keep(remember, request.salt), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def idle(self) -> bool:
        """Whether everything is remembered and evaluated."""
        return not self._tasks

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, remember: Callable[[], list[int]], salt: str) -> None:
        try:
            tokens = await self._served.prompt_work.run(remember)
            if tokens:
                request = GenerationRequest(tokens, salt=salt, precompute=True, patient=True)
                async for _ in self._served.generator.submit(request):
                    pass
        except DuoError:
            pass  # too busy, or too long: the next turn evaluates it itself
        except Exception:
            logger.exception("a reply is not remembered")

    def _remember(
        self, asked: Prompted, request: GenerationRequest, said: tuple[Message, Sequence[int]], settle: bool
    ) -> list[int]:
        """Returns the tokens that are worth evaluating in advance."""
        message, generated = said
        self._transcript.remember(asked.text, request.prompt, generated, request.salt)
        if not settle:
            return []
        messages, reply = continued(asked.messages, message.as_json)
        text = self._served.template.settled(messages, reply, asked.setting)
        if text is None:
            return []
        tokens = self.tokens_of(text, request.salt)
        n_known = common_prefix([*request.prompt, *generated], tokens)
        return tokens if len(tokens) - n_known >= WORTH_SETTLING else []
