"""Keep the exact tokens of earlier replies, so that the next turn's prompt finds them in the cache.

A client sends a conversation back as text, and tokenising this text may give other tokens than the generated
ones. Some templates also write an earlier reply differently. If both spellings mean the same message, the
prompt keeps the generated spelling. If not, for example because the template drops thoughts, the beginning of
the next prompt is evaluated ahead while the server is idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from server.cache.prefix import common_prefix
from server.engine.request import GenerationRequest
from server.errors import DuoError
from server.formats.extent import extent
from server.llama.backend import PICTURE_IDS, Vocabulary
from server.text.guard import begun, encoded, printable
from server.text.message import Message
from server.text.reply import as_read
from server.text.rewritten import Rewritten
from server.text.room import Room
from server.text.template import continued
from server.text.transcript import Transcript

if TYPE_CHECKING:
    from server.api.services import Services
    from server.api.stages.prompted import Prompted

logger = logging.getLogger("duo.api")

MIN_PREFILLED = 16
"""Minimum tokens to evaluate ahead for the next turn."""
LATER_S = 0.02
"""Seconds after a reply until it is remembered, unless a request needs it sooner.

Remembering occupies the interpreter for 1.3 ms, but the reply's last bytes and the next prompt come first.
Half: a client that asks again after 10 ms is delayed. Twice: the next turn's beginning is evaluated later.
"""


def after_bos(vocabulary: Vocabulary, tokens: list[int]) -> list[int]:
    """Return the tokens of a prompt, with a leading BOS if the model wants it."""
    if vocabulary.add_bos and vocabulary.bos is not None and tokens[:1] != [vocabulary.bos]:
        return [vocabulary.bos, *tokens]
    return tokens


class History:
    """The conversations of one server.

    `rendered`, `tokens_of` and `recall` are safe from any thread. Use everything else on the event loop only.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._transcript = Transcript(services.vocabulary, own=services.template.own_markers)
        self._rewritten = Rewritten()
        self._tasks = set[asyncio.Task[Any]]()
        self._remembering = set[asyncio.Task[Any]]()
        self._wanted = asyncio.Event()

    def rendered(self, text: str, salt: str, room: Room | None = None) -> list[int]:
        """Return the tokens of a rendered prompt. Earlier replies keep their generated tokens.

        Args:
            text: The rendered prompt.
            salt: Replies of other salts do not count.
            room: Limits of the prompt's size; None: the model's.

        Raises:
            ContextOverflowError: The prompt is too long.
        """
        return self._tokens_of(self._rewritten.as_generated(text, salt), salt, "messages", room)

    def tokens_of(self, text: str, salt: str, param: str) -> list[int]:
        """Return the tokens of a raw text. Earlier replies of this salt keep their generated tokens.

        Raises:
            ContextOverflowError: The text is too long; the error names `param`. If possible, it is raised
                before tokenising.
        """
        return self._tokens_of(printable(text), salt, param)

    def _tokens_of(self, text: str, salt: str, param: str, room: Room | None = None) -> list[int]:
        room = room or self._services.room
        room.check_bytes(len(encoded(text)), param)
        tokens = after_bos(self._services.vocabulary, self._transcript.tokens_for(text, salt))
        room.check_tokens(len(tokens), param)
        return tokens

    def recall(self, conversations: Iterable[Sequence[int]], salt: str = "") -> None:
        """Add conversations of earlier runs or other leads, as tokens. 8,000 tokens take 2 to 5 ms.

        Conversations with pictures are left out, because their text is not known.
        """
        for tokens in conversations:
            if max(tokens, default=0) < PICTURE_IDS:
                self._transcript.recall(tokens, salt)

    def ended(
        self,
        asked: Prompted,
        request: GenerationRequest,
        said: tuple[Message, Sequence[int]],
        *,
        prefill: bool,
    ) -> None:
        """Start a task that remembers a reply after LATER_S.

        Args:
            asked: The prompt that the reply answers.
            request: The request to the engine.
            said: The message, and its tokens including a stop token.
            prefill: Also evaluate the beginning of the next turn.
        """
        remember = partial(self._remember_reply, asked, request, said, prefill)
        own = Context()  # this work must not be charged to the request that has ended
        remembering = asyncio.create_task(self._run_later(remember), context=own)
        task = asyncio.create_task(self._prefill_later(remembering, request), context=own)
        for doing, those in ((remembering, self._remembering), (task, self._tasks)):
            those.add(doing)
            doing.add_done_callback(those.discard)

    async def remembered(self) -> None:
        """Remember all ended replies now instead of after LATER_S, and wait until that is done.

        Call this when a prompt may continue one of them.
        """
        if self._remembering:
            self._wanted.set()
            try:
                await asyncio.wait(self._remembering)
            finally:
                self._wanted.clear()

    async def _run_later(self, remember: Callable[[], list[int]]) -> list[int]:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), LATER_S)
        return await self._services.prompt_work.run(remember)

    @property
    def idle(self) -> bool:
        """True if all ended replies are remembered, and nothing is left to be evaluated ahead."""
        return not self._tasks

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prefill_later(self, remembering: Awaitable[list[int]], ended: GenerationRequest) -> None:
        try:
            tokens = await remembering
            if tokens:
                pictures = self._services.spans(tokens)  # the ended request keeps its pictures known
                request = GenerationRequest(
                    tokens, salt=ended.salt, precompute=True, patient=True, pictures=pictures
                )
                async for _ in self._services.generator.submit(request):
                    pass
        except DuoError:
            pass  # too busy, or prompt too long: the next turn evaluates it itself
        except Exception:
            logger.exception("cannot remember a reply: the next turn evaluates it again")

    def _remember_reply(
        self, asked: Prompted, request: GenerationRequest, said: tuple[Message, Sequence[int]], prefill: bool
    ) -> list[int]:
        """Remember a reply's tokens; return the first tokens of the next turn's prompt, to evaluate ahead.

        Args:
            asked: The prompt.
            request: The request for the reply.
            said: The reply as a message, and its tokens.
            prefill: False: return no tokens, so that nothing is evaluated ahead.

        Returns:
            The tokens; none if there are too few to evaluate ahead.
        """
        message, generated = said
        text = self._rewritten.as_generated(asked.text, request.salt)
        self._transcript.remember(text, request.prompt, generated, request.salt)
        if not prefill:
            return []
        messages, reply = continued(asked.messages, message.as_json, asked.setting)
        stable = self._services.template.next_prefix(messages, reply, asked.setting)
        if stable is None:
            return []
        known, salt = [*request.prompt, *generated], request.salt
        tokens = self.rendered(stable, salt)
        if _n_new(tokens, known) and self._learn_spelling(asked, stable, text, said, salt):
            tokens = self.rendered(stable, salt)
        return tokens if _n_new(tokens, known) else []

    def _learn_spelling(
        self, asked: Prompted, stable: str, prompt: str, said: tuple[Message, Sequence[int]], salt: str
    ) -> bool:
        """Learn to replace the template's spelling of a reply by the generated one, if their meanings agree.

        Args:
            asked: The prompt that the reply answers.
            stable: The beginning of the next turn's prompt, which later turns do not change.
            prompt: asked.text with the generated spelling of earlier replies.
            said: The message and its tokens.
            salt: Only prompts of this salt use the replacement.

        Returns:
            True if both spellings mean the same message.
        """
        message, tokens = said
        generated = self._transcript.spelled(tokens)
        if not stable.startswith(asked.text):
            return False
        shown, read = stable[len(asked.text) :], as_read(self._services.vocabulary, asked.form, tokens)
        n_written, n_generated = (extent(one, asked.form, message) for one in (shown, read))
        if n_written is None or n_generated is None:
            return False
        written = asked.text + begun(shown, n_written)
        self._rewritten.learn(written, prompt + begun(generated, n_generated), salt)
        return True


def _n_new(tokens: list[int], known: list[int]) -> int:
    """Return the number of tokens after the prefix shared with `known`; 0 if below MIN_PREFILLED."""
    n_new = len(tokens) - common_prefix(known, tokens)
    return n_new if n_new >= MIN_PREFILLED else 0
