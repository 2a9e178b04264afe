"""Keep the exact tokens of past conversations, for prompts that send them back as text.

A model often generates other tokens than a tokenizer makes of the same text. If a history is tokenised
again, its tokens differ from those in the KV cache from the first reply on. So the tokens of finished
conversations are kept beside their text, and a prompt with the same beginning gets the same tokens.

Where kept tokens end and fresh ones begin, no merge of the tokenizer may be missed. The tokenizer reads text
after a control token independently of the text before it. So tokenising starts again at the last common
control token. What happens to the kept tokens after it depends on who made them. If a model generated
them, they are used up to the last token boundary that the fresh tokens share, because no merge crosses it. If
the tokenizer made them, fresh tokens replace them, because the tokenizer may have looked ahead.

All texts are guarded (`guard.py`), so text of a client or of a reply is never taken for a control token.
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

MAX_REMEMBERED_TOKENS = 1_000_000
"""Maximum tokens kept; a token and its text take about 16 bytes."""
MOST_CONVERSATIONS = 1024

_text = attrgetter("text")


@dataclass(frozen=True, slots=True, eq=False)
class _Conversation:
    """Tokens and text of one conversation.

    Bytes that no token stands for, such as swallowed white space, count as the beginning of the next token.
    """

    salt: str
    text: bytes  # the text with its guards, as encoded() returns it
    tokens: array[int]
    ends: array[int]  # byte of `text` at which each token ends
    controls: array[int]  # indices of control tokens


class Transcript:
    """A bounded memory of conversations; drops the least recently used.

    Conversations of different salts are kept apart. Safe from any thread; holds no lock while it tokenises.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        most_tokens: int = MAX_REMEMBERED_TOKENS,
        most_conversations: int = MOST_CONVERSATIONS,
        own: Iterable[str] = (),
    ) -> None:
        """Begin without conversations. Replies may spell the control tokens `own` without getting guards."""
        self._vocabulary = vocabulary
        self._tokenizer = GuardedTokenizer(vocabulary)
        self._in_replies = Spellings(controls_of(vocabulary).keys() - {*own})
        self._offsets = OffsetMapper(vocabulary)
        self._most_tokens = most_tokens
        self._most_conversations = most_conversations
        # sorted by text, so texts with a common beginning are adjacent
        self._by_salt: dict[str, list[_Conversation]] = {}
        self._by_use: OrderedDict[_Conversation, None] = OrderedDict()
        self.n_tokens = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._by_use)

    def tokens_for(self, text: str, salt: str) -> list[int]:
        """Return the prompt's tokens, without a BOS that the text does not contain.

        Where the text agrees with a kept conversation, the tokens are those of the conversation. The other
        tokens are those that the tokenizer makes.
        """
        data = encoded(text)
        found = self._nearest_conversation(data, salt)
        return self._splice_tokens(data, *found) if found else self._tokenize_guarded(data)

    def remember(self, text: str, prompt: Sequence[int], reply: Sequence[int], salt: str) -> None:
        """Keep a conversation.

        Args:
            text: The rendered prompt.
            prompt: Its tokens; a BOS that the text does not contain is dropped.
            reply: The tokens generated after them, including the one that ended the turn.
            salt: Only prompts of this salt get the tokens.
        """
        for n_added in {0, self._offsets.n_added(prompt, reply)}:  # a template may write the added space
            conversation = self._make_conversation(encoded(text), prompt, reply, salt, n_added)
            if 0 < len(conversation.tokens) <= self._most_tokens:
                with self._lock:
                    self._insert_conversation(conversation)

    def recall(self, tokens: Sequence[int], salt: str) -> None:
        """Keep a conversation of which only the tokens are known."""
        self.remember(self.spelled(tokens), tokens, (), salt)

    def spelled(self, tokens: Sequence[int]) -> str:
        """Return the guarded text of a reply's tokens, control tokens included."""
        runs = enumerate(self._offsets.runs(tokens))
        texts = ((i % 2, run.decode(errors="ignore")) for i, run in runs)
        return "".join(text if control else self._in_replies.guarded(text) for control, text in texts)

    def _nearest_conversation(self, data: bytes, salt: str) -> tuple[_Conversation, int] | None:
        """Return the conversation that shares the longest prefix with `data`, and the prefix's size.

        The size is in bytes. In sorted order that conversation is next to `data`.
        """
        with self._lock:
            held = self._by_salt.get(salt, [])
            at = bisect_left(held, data, key=_text)
            found = [(common_prefix(one.text, data), one) for one in held[max(0, at - 1) : at + 1]]
            n_same, nearest = max(found, key=lambda one: one[0], default=(0, None))
            if nearest is None or not n_same:
                return None
            self._by_use.move_to_end(nearest)
            return nearest, n_same

    def _splice_tokens(self, data: bytes, kept: _Conversation, n_same: int) -> list[int]:
        """Return the tokens of a text whose first n_same bytes agree with a kept conversation."""
        n_whole = bisect_right(kept.ends, n_same)
        first, end, start = self._control_segment(kept, n_whole)
        fresh = self._tokenize_guarded(data[start:])
        n_kept, n_skipped = first, 0
        tokens, text = kept.tokens[first:end].tolist(), kept.text[start : kept.ends[end - 1]]
        begun = fresh[: n_whole - first]
        if tokens[: len(begun)] != begun and not self._is_tokenized(text, tokens):
            ends = self._token_ends(data, fresh, start)
            n_kept, n_skipped = _find_joint(kept.ends, first, n_whole, ends)
        return kept.tokens[:n_kept].tolist() + fresh[n_skipped:]

    def _control_segment(self, kept: _Conversation, n_whole: int) -> tuple[int, int, int]:
        """Find the segment, from one control token to the next, in which the first n_whole tokens end.

        Returns:
            Index of the first token, index after the last one, and the byte at which the first one begins.
        """
        at = bisect_left(kept.controls, n_whole)
        end = kept.controls[at] if at < len(kept.controls) else len(kept.tokens)
        if not at:
            return 0, end, 0
        first = kept.controls[at - 1]
        return first, end, kept.ends[first] - len(self._offsets.spelled((kept.tokens[first],)))

    def _is_tokenized(self, text: bytes, tokens: list[int]) -> bool:
        """Return True if the tokenizer makes exactly these tokens of the text."""
        try:
            return self._tokenize_guarded(text) == tokens
        except UnicodeDecodeError:  # the reply breaks off within a character
            return False

    def _tokenize_guarded(self, data: bytes) -> list[int]:
        return self._tokenizer.tokens(data.decode(errors="surrogatepass"))

    def _token_ends(self, data: bytes, tokens: Sequence[int], start: int) -> array[int]:
        """Return the byte of a guarded text at which each token ends. The first token begins at `start`."""
        if GUARD_BYTES not in data:
            return self._offsets.ends(data, tokens, start)
        guards = guards_in(data[start:])
        found = behind_guards(self._offsets.ends(data[start:].replace(GUARD_BYTES, b""), tokens), guards)
        return array("q", (start + end for end in found))

    def _make_conversation(
        self, data: bytes, prompt: Sequence[int], reply: Sequence[int], salt: str, n_added: int
    ) -> _Conversation:
        """Return a conversation; cut it before the tokens of the prompt that the text lacks, if any.

        n_added: Number of bytes at the reply's beginning that `data` contains already.
        """
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

    def _insert_conversation(self, new: _Conversation) -> None:
        """Keep a conversation, and drop the conversations that it continues, as it contains their text."""
        held = self._by_salt.get(new.salt, [])
        at = bisect_left(held, new.text, key=_text)
        if at < len(held) and held[at].text.startswith(new.text):
            if held[at].tokens[: len(new.tokens)] == new.tokens:
                self._by_use.move_to_end(held[at])
                return
            if held[at].text == new.text:
                self._forget_conversation(held[at])
        while at and new.text.startswith(held[at - 1].text):
            at -= 1
            self._forget_conversation(held[at])
        self._by_salt.setdefault(new.salt, []).insert(at, new)
        self._by_use[new] = None
        self.n_tokens += len(new.tokens)
        while self.n_tokens > self._most_tokens or len(self) > self._most_conversations:
            self._forget_conversation(next(iter(self._by_use)))

    def _forget_conversation(self, conversation: _Conversation) -> None:
        held = self._by_salt[conversation.salt]
        del held[bisect_left(held, conversation.text, key=_text)]
        if not held:
            del self._by_salt[conversation.salt]
        del self._by_use[conversation]
        self.n_tokens -= len(conversation.tokens)


def _find_joint(kept: array[int], first: int, n_whole: int, fresh: array[int]) -> tuple[int, int]:
    """Find the last byte at which both a kept and a fresh token end.

    Tokens without text are taken from the fresh ones.

    Args:
        kept: Byte at which each kept token ends.
        first: Index of the kept token where the first fresh one begins.
        n_whole: Number of leading kept tokens that may be used.
        fresh: Byte at which each fresh token ends.

    Returns:
        The number of leading kept tokens to take, and the number of leading fresh tokens to leave out.
    """
    for end in reversed(kept[first:n_whole]):
        at = bisect_left(fresh, end)
        if at < len(fresh) and fresh[at] == end:
            return bisect_left(kept, end) + 1, at + 1
    return first, 0
