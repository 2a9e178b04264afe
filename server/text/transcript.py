"""The exact tokens of past conversations, for prompts that send them back as text.

What a model generates is seldom how a tokenizer would have cut the same text, so a history that is tokenised
anew departs from the KV cache in the middle of the first reply. Here the tokens of finished conversations are
kept beside their text, and a prompt that begins alike begins with the same tokens.

Where the kept tokens end and fresh ones begin, the tokenizer must not be cheated of a merge. It reads what
comes after a control token independently of what came before, so the fresh tokens are those of the text from
the last common control token on. If kept tokens after that one are a model's, as where texts part in the
middle of a reply, they are taken up to the last boundary that the fresh tokens have too: nothing is merged
over it. If they are the tokenizer's, the fresh ones replace them, since it may have looked ahead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock

from server.llama.backend import Vocabulary
from server.text.common_prefix import common_prefix
from server.text.offsets import OffsetMapper

MOST_TOKENS = 1_000_000
"""Kept in all; a token and its text take some 16 bytes."""
MOST_CONVERSATIONS = 1024

_text = attrgetter("text")


@dataclass(frozen=True, slots=True, eq=False)
class _Conversation:
    """tokens; text: the bytes they stand for; ends: the byte where each token ends; controls: indices of
    control tokens. Swallowed white space belongs to the next token."""

    salt: str
    text: bytes
    tokens: array[int]
    ends: array[int]
    controls: array[int]


@dataclass(frozen=True, slots=True)
class _Segment:
    """Tokens from a control token, or the beginning, to the next one: indices first and end; start: the byte
    where it begins."""

    first: int
    end: int
    start: int


class Transcript:
    """A bounded memory of conversations: drops the least recently used. Salts are separate. Safe from any
    thread; holds no lock while tokenising."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        most_tokens: int = MOST_TOKENS,
        most_conversations: int = MOST_CONVERSATIONS,
    ) -> None:
        self._vocabulary = vocabulary
        self._offsets = OffsetMapper(vocabulary)
        self._most_tokens = most_tokens
        self._most_conversations = most_conversations
        self._by_salt: dict[str, list[_Conversation]] = {}  # sorted by text: what begins alike is adjacent
        self._by_use: OrderedDict[_Conversation, None] = OrderedDict()
        self._n_tokens = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._by_use)

    @property
    def n_tokens(self) -> int:
        return self._n_tokens

    def tokens_for(self, text: str, salt: str) -> list[int]:
        """The tokens of exactly this text, without a BOS that is not in it: those of a kept conversation as
        far as it agrees, then the tokenizer's."""
        data = text.encode()
        found = self._nearest(data, salt)
        if found is None:
            return self._tokenize(data)
        conversation, n_same = found
        return self._spliced(data, conversation, n_same)

    def remember(self, text: str, prompt: Sequence[int], reply: Sequence[int], salt: str) -> None:
        """Keep a conversation: the rendered prompt and its tokens (without a BOS in front that the text does
        not have), and the tokens of the reply with the stop token."""
        conversation = self._conversation(text.encode(), prompt, reply, salt)
        if 0 < len(conversation.tokens) <= self._most_tokens:
            with self._lock:
                self._insert(conversation)

    def recall(self, tokens: Sequence[int], salt: str) -> None:
        """Keep a conversation by its tokens, as far as they are text."""
        text = self._offsets.spelled(tokens).decode(errors="ignore")
        self.remember(text, tokens, (), salt)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        kept = [conversation for held in self._by_salt.values() for conversation in held]
        assert len(kept) == len(self._by_use) <= self._most_conversations
        assert set(kept) == set(self._by_use)
        assert sum(len(one.tokens) for one in kept) == self._n_tokens <= self._most_tokens
        for held in self._by_salt.values():
            texts = [one.text for one in held]
            assert held
            assert texts == sorted(set(texts))

    def _nearest(self, data: bytes, salt: str) -> tuple[_Conversation, int] | None:
        """The conversation with the longest common prefix, and its length."""
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
        """Tokens of a text that shares its first n_same bytes with a conversation."""
        n_whole = bisect_right(kept.ends, n_same)
        segment = self._segment(kept, n_whole)
        fresh = self._tokenize(data[segment.start :])
        n_kept, n_skipped = segment.first, 0
        if not self._replaceable(kept, segment, fresh[: n_whole - segment.first]):
            ends = self._offsets.ends(data, fresh, segment.start)
            n_kept, n_skipped = _joint(kept.ends, segment.first, n_whole, ends)
        return kept.tokens[:n_kept].tolist() + fresh[n_skipped:]

    def _segment(self, kept: _Conversation, n_whole: int) -> _Segment:
        """The segment in which the first n_whole tokens end."""
        at = bisect_left(kept.controls, n_whole)
        end = kept.controls[at] if at < len(kept.controls) else len(kept.tokens)
        if not at:
            return _Segment(0, end, 0)
        first = kept.controls[at - 1]
        return _Segment(first, end, kept.ends[first] - len(self._offsets.spelled((kept.tokens[first],))))

    def _replaceable(self, kept: _Conversation, segment: _Segment, fresh: list[int]) -> bool:
        """Whether these fresh tokens may begin the segment: they equal the kept ones, or the kept ones are
        the tokenizer's for a text that went on differently."""
        tokens = kept.tokens[segment.first : segment.end].tolist()
        if tokens[: len(fresh)] == fresh:
            return True
        text = kept.text[segment.start : kept.ends[segment.end - 1]]
        try:
            return self._tokenize(text) == tokens
        except UnicodeDecodeError:  # a reply that breaks off within a character
            return False

    def _tokenize(self, data: bytes) -> list[int]:
        return self._vocabulary.tokenize(data.decode(), special=True)

    def _conversation(
        self, data: bytes, prompt: Sequence[int], reply: Sequence[int], salt: str
    ) -> _Conversation:
        """Ends where the prompt's tokens are not found in its text."""
        bos = self._vocabulary.bos
        if prompt and prompt[0] == bos and not data.startswith(self._offsets.spelled(prompt[:1])):
            prompt = prompt[1:]
        ends = self._offsets.ends(data, prompt)
        tokens = array("i", prompt[: len(ends)])
        n_found = ends[-1] if ends else 0
        if len(ends) == len(prompt) and not data[n_found:].strip():
            ends += self._offsets.literal_ends(reply, len(data))
            data += self._offsets.spelled(reply)
            tokens.extend(reply)
        else:
            data = data[:n_found]
        return _Conversation(salt, data, tokens, ends, self._offsets.controls(tokens))

    def _insert(self, new: _Conversation) -> None:
        """Drops conversations that this one continues."""
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
        self._n_tokens += len(new.tokens)
        while self._n_tokens > self._most_tokens or len(self) > self._most_conversations:
            self._forget(next(iter(self._by_use)))

    def _forget(self, conversation: _Conversation) -> None:
        held = self._by_salt[conversation.salt]
        del held[bisect_left(held, conversation.text, key=_text)]
        if not held:
            del self._by_salt[conversation.salt]
        del self._by_use[conversation]
        self._n_tokens -= len(conversation.tokens)


def _joint(kept: array[int], first: int, n_whole: int, fresh: array[int]) -> tuple[int, int]:
    """How many kept tokens to take and how many fresh ones to skip, so that both meet at the last common
    boundary within the first n_whole kept tokens. The fresh ones begin with the kept token `first`. Both are
    given by their ends. Tokens without text are taken from the fresh ones."""
    for end in reversed(kept[first:n_whole]):
        at = bisect_left(fresh, end)
        if at < len(fresh) and fresh[at] == end:
            return bisect_left(kept, end) + 1, at + 1
    return first, 0
