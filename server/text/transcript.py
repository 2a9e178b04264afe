"""The exact tokens of past conversations, for prompts that send them back as text.

What a model generates is seldom how a tokenizer would have cut the same text, so a history that is tokenised
anew departs from the KV cache in the middle of the first reply. Here the tokens of finished conversations are
kept beside their text, and a prompt that begins alike begins with the same tokens.

Where the kept tokens end and fresh ones begin, the tokenizer must not be cheated of a merge. It reads what
comes after a control token independently of what came before, so the fresh tokens are those of the text from
the last common control token on. If kept tokens after that one are a model's, as where texts part in the
middle of a reply, they are taken up to the last boundary that the fresh tokens have too: nothing is merged
over it. If they are the tokenizer's, the fresh ones replace them, since it may have looked ahead.

All texts are guarded (`guard.py`), so that what a client's text or a reply spells like a control token is not
taken for one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock

from server.cache.radix import common_prefix
from server.llama.backend import Vocabulary
from server.text.guard import GUARD_BYTES, Spellings, controls_of, encoded
from server.text.guarded_tokens import (
    GuardedTokenizer,
    behind_guards,
    guards_in,
    spelled_alike,
    with_guards,
)
from server.text.offsets import OffsetMapper

MOST_TOKENS = 1_000_000
"""Kept in all; a token and its text take some 16 bytes."""
MOST_CONVERSATIONS = 1024

_text = attrgetter("text")


@dataclass(frozen=True, slots=True, eq=False)
class _Conversation:
    """Tokens, the text they stand for, the byte at which each ends, and which are control tokens (indices).
    Bytes that no token stands for, swallowed white space, come before the next token's first."""

    salt: str
    text: bytes
    tokens: array[int]
    ends: array[int]
    controls: array[int]


class Transcript:
    """A bounded memory of conversations: the one least recently used is forgotten first. Texts of different
    salts never meet. Safe from any thread; takes no lock while it tokenises."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        most_tokens: int = MOST_TOKENS,
        most_conversations: int = MOST_CONVERSATIONS,
        own: Iterable[str] = (),
    ) -> None:
        """own: texts of control tokens that are not guarded in replies."""
        self._vocabulary = vocabulary
        self._tokenizer = GuardedTokenizer(vocabulary)
        self._in_replies = Spellings(controls_of(vocabulary).keys() - {*own})
        self._offsets = OffsetMapper(vocabulary)
        self._most_tokens = most_tokens
        self._most_conversations = most_conversations
        self._by_salt: dict[str, list[_Conversation]] = {}  # sorted by text: what begins alike is adjacent
        self._by_use: OrderedDict[_Conversation, None] = OrderedDict()
        self.n_tokens = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._by_use)

    def tokens_for(self, text: str, salt: str) -> list[int]:
        """The prompt's tokens, without a BOS that is not written out. They stand for exactly this text. As
        far as it agrees with a conversation kept, they are that one's, else the tokenizer's."""
        data = encoded(text)
        found = self._nearest(data, salt)
        return self._spliced(data, *found) if found else self._tokenize(data)

    def remember(self, text: str, prompt: Sequence[int], reply: Sequence[int], salt: str) -> None:
        """Keep a conversation: the rendered prompt and its tokens (a BOS in front that the text does not
        have is left out), and the tokens generated after them, the one that ended the turn included."""
        for n_added in {0, self._offsets.n_added(prompt, reply)}:  # a template may or may not write that
            conversation = self._conversation(encoded(text), prompt, reply, salt, n_added)
            if 0 < len(conversation.tokens) <= self._most_tokens:
                with self._lock:
                    self._insert(conversation)

    def recall(self, tokens: Sequence[int], salt: str) -> None:
        """Keep a conversation of which only the tokens are known, as far as they spell text."""
        self.remember(self.spelled(tokens), tokens, (), salt)

    def spelled(self, tokens: Sequence[int]) -> str:
        """What the tokens of a reply stand for, control tokens included."""
        runs = enumerate(self._offsets.runs(tokens))
        texts = ((i % 2, run.decode(errors="ignore")) for i, run in runs)
        return "".join(text if control else self._in_replies.guarded(text) for control, text in texts)

    def _nearest(self, data: bytes, salt: str) -> tuple[_Conversation, int] | None:
        """The conversation with the longest common prefix, and its length. It is a neighbour in order."""
        with self._lock:
            held = self._by_salt.get(salt, [])
            at = bisect_left(held, data, key=_text)
            found = [(common_prefix(one.text, data), one) for one in held[max(0, at - 1) : at + 1]]
            n_same, nearest = max(found, key=lambda one: one[0], default=(0, None))
            if nearest is None or not n_same:
                return None
            self._by_use.move_to_end(nearest)
            return nearest, n_same

    def _spliced(self, data: bytes, kept: _Conversation, n_same: int) -> list[int]:
        """Tokens of a text whose first n_same bytes are those of a conversation."""
        n_whole = bisect_right(kept.ends, n_same)
        first, end, start = self._segment(kept, n_whole)
        fresh = self._tokenize(data[start:])
        n_kept, n_skipped = first, 0
        tokens, text = kept.tokens[first:end].tolist(), kept.text[start : kept.ends[end - 1]]
        begun = fresh[: n_whole - first]
        if tokens[: len(begun)] != begun and not self._is_tokenized(text, tokens):
            ends = self._ends(data, fresh, start)
            n_kept, n_skipped = _joint(kept.ends, first, n_whole, ends)
        return kept.tokens[:n_kept].tolist() + fresh[n_skipped:]

    def _segment(self, kept: _Conversation, n_whole: int) -> tuple[int, int, int]:
        """The tokens from one control token to the next among which the first n_whole tokens end: the first,
        the end, and the byte at which they start."""
        at = bisect_left(kept.controls, n_whole)
        end = kept.controls[at] if at < len(kept.controls) else len(kept.tokens)
        if not at:
            return 0, end, 0
        first = kept.controls[at - 1]
        return first, end, kept.ends[first] - len(self._offsets.spelled((kept.tokens[first],)))

    def _is_tokenized(self, text: bytes, tokens: list[int]) -> bool:
        """Whether these tokens are the tokenizer's, not a model's."""
        try:
            return self._tokenize(text) == tokens
        except UnicodeDecodeError:  # a reply that breaks off within a character
            return False

    def _tokenize(self, data: bytes) -> list[int]:
        return self._tokenizer.tokens(data.decode(errors="surrogatepass"))

    def _ends(self, data: bytes, tokens: Sequence[int], start: int) -> array[int]:
        """The end of each token in a guarded text, the first beginning at `start`."""
        if GUARD_BYTES not in data:
            return self._offsets.ends(data, tokens, start)
        guards = guards_in(data[start:])
        found = behind_guards(self._offsets.ends(data[start:].replace(GUARD_BYTES, b""), tokens), guards)
        return array("q", (start + end for end in found))

    def _conversation(
        self, data: bytes, prompt: Sequence[int], reply: Sequence[int], salt: str, n_added: int
    ) -> _Conversation:
        """Without what follows a place where the prompt's tokens cannot be found in its text, and without the
        first n_added bytes of the reply."""
        bos = self._vocabulary.bos
        if prompt and prompt[0] == bos and not data.startswith(self._offsets.spelled(prompt[:1])):
            prompt = prompt[1:]
        guards, data = guards_in(data), data.replace(GUARD_BYTES, b"")
        ends = self._offsets.ends(data, prompt)
        tokens = array("i", prompt[: len(ends)])
        n_found = ends[-1] if ends else 0
        if len(ends) == len(prompt) and not data[n_found:].strip():
            start = len(data) - n_added
            guards += [start + at for at in spelled_alike(self._offsets.runs(reply), self._in_replies)]
            ends += self._offsets.literal_ends(reply, start)
            data += self._offsets.spelled(reply)[n_added:]
            tokens.extend(reply)
        else:
            data = data[:n_found]
            guards = [at for at in guards if at <= n_found]
        ends, data = behind_guards(ends, guards), with_guards(data, guards)
        return _Conversation(salt, data, tokens, ends, self._offsets.controls(tokens))

    def _insert(self, new: _Conversation) -> None:
        """Conversations that this one continues are not kept beside it: it has all that they have."""
        held = self._by_salt.get(new.salt, [])
        at = bisect_left(held, new.text, key=_text)
        if at < len(held) and held[at].text.startswith(new.text):
            if held[at].tokens[: len(new.tokens)] == new.tokens:
                self._by_use.move_to_end(held[at])
                return
            if held[at].text == new.text:
                self._forget(held[at])
        while at and new.text.startswith(held[at - 1].text):
            at -= 1
            self._forget(held[at])
        self._by_salt.setdefault(new.salt, []).insert(at, new)
        self._by_use[new] = None
        self.n_tokens += len(new.tokens)
        while self.n_tokens > self._most_tokens or len(self) > self._most_conversations:
            self._forget(next(iter(self._by_use)))

    def _forget(self, conversation: _Conversation) -> None:
        held = self._by_salt[conversation.salt]
        del held[bisect_left(held, conversation.text, key=_text)]
        if not held:
            del self._by_salt[conversation.salt]
        del self._by_use[conversation]
        self.n_tokens -= len(conversation.tokens)


def _joint(kept: array[int], first: int, n_whole: int, fresh: array[int]) -> tuple[int, int]:
    """How many kept tokens to take and how many fresh ones to leave out, so that they meet where both have a
    boundary, as late as possible within the first n_whole kept ones; the fresh ones begin with the kept token
    `first`. All by where they end. Of tokens without text the fresh are taken."""
    for end in reversed(kept[first:n_whole]):
        at = bisect_left(fresh, end)
        if at < len(fresh) and fresh[at] == end:
            return bisect_left(kept, end) + 1, at + 1
    return first, 0
