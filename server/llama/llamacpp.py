"""A Backend with a real model, over llama-cpp-python's low-level API.

Every C handle has one owner here that frees it. The C structures are those of the pinned release.
"""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from server.errors import BackendError, StartupError
from server.llama.backend import Batch, FillInMiddle, Vocabulary
from server.llama.context import LlamaContext, has_state
from server.llama.context_params import context_params, spare_sequence
from server.llama.cuts import Cuts
from server.llama.graph_keys import keys_of
from server.llama.library import (
    COMPRESSED,
    C,
    LoadedModel,
    computes_elsewhere,
    first_error,
    is_open,
    tokenize,
    with_attention,
)
from server.llama.mapped_files import own_memory, release_mapped
from server.llama.options import LlamaOptions
from server.llama.parts import model_name
from server.llama.tails import with_tail
from server.llama.tensors import ASSISTANTS, DFLASH, EAGLE3, is_block
from server.llama.windows import MOST_SEQS

_ADDED = C.LLAMA_TOKEN_ATTR_USER_DEFINED
_CONTROL = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN

ChooseAttention = Callable[[LoadedModel, LlamaOptions], Literal["on", "off"]]


class LlamaVocabulary:
    """The Vocabulary of a loaded model. Use it only while the model is open."""

    def __init__(self, model: Any) -> None:
        self._vocab = C.llama_model_get_vocab(model)
        self.size = int(C.llama_vocab_n_tokens(self._vocab))
        self.bos = _token_or_none(C.llama_vocab_bos(self._vocab))
        self.eos = _token_or_none(C.llama_vocab_eos(self._vocab))
        self.eog = frozenset(t for t in range(self.size) if C.llama_vocab_is_eog(self._vocab, t))
        self.add_bos = bool(C.llama_vocab_get_add_bos(self._vocab))
        of = (C.llama_vocab_fim_pre, C.llama_vocab_fim_suf, C.llama_vocab_fim_mid)
        prefix, suffix, middle = (token(self._vocab) for token in of)
        whole = (token(self._vocab) for token in (C.llama_vocab_fim_rep, C.llama_vocab_fim_sep))
        repository, file = (id if id >= 0 else None for id in whole)
        fim = FillInMiddle(prefix, suffix, middle, repository, file)
        self.fim = fim if min(prefix, suffix, middle) >= 0 else None
        self.piece = functools.cache(self._read_piece)
        texts = [C.llama_vocab_get_text(self._vocab, token) for token in range(self.size)]
        self.longest = self._longest_piece(texts)
        attributes = [C.llama_vocab_get_attr(self._vocab, token) for token in range(self.size)]
        self.added = {
            texts[token].decode(errors="replace"): token
            for token, attribute in enumerate(attributes)
            if attribute & (_ADDED | _CONTROL)
        }
        self._cuts = {special: self._cuts_at(attributes, special) for special in (False, True)}

    def _longest_piece(self, texts: list[bytes]) -> int:
        """Return the length of the longest piece in bytes.

        Args:
            texts: Texts of all tokens in the model file, each at least as long as the token's piece.
        """
        longest = 0
        for token in sorted(range(self.size), key=lambda token: -len(texts[token])):
            if len(texts[token]) <= longest:
                break
            longest = max(longest, len(self.piece(token, special=True)))
        return longest

    def _cuts_at(self, attributes: list[int], special: bool) -> Cuts:
        """Return the Cuts at added words, and at control tokens if `special`. attributes: flags by token."""
        found = _ADDED | (_CONTROL if special else 0)
        marks = {text: attributes[token] for text, token in self.added.items() if attributes[token] & found}
        keeps_space = (text for text, attribute in marks.items() if not attribute & C.LLAMA_TOKEN_ATTR_LSTRIP)
        return Cuts(list(marks), list(keeps_space))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        tokens: list[int] = []
        for piece in self._cuts[special].pieces(text):
            tokens += tokenize(self._vocab, piece, begin=False, special=special)
        return tokens

    def _read_piece(self, token: int, *, special: bool = False) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = C.llama_token_to_piece(self._vocab, token, buffer, 64, 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._vocab, token, buffer, -n, 0, special)
        return buffer.raw[:n]


def _template_named(model: Any, name: bytes | None) -> str | None:
    """Return the chat template of this name, None if there is none. `name` None: the main template."""
    text = C.llama_model_chat_template(model, name)
    return text.decode() if text else None


def _check_stands_alone(model: LoadedModel, path: Path) -> None:
    """Raise StartupError if the model is a head, block or assistant, which needs another model's rows."""
    kinds = {EAGLE3: "is an EAGLE-3 head, which guesses from what its target computes"}
    kinds |= {DFLASH: "is a DFlash head, which guesses from what its target computes"}
    kinds |= dict.fromkeys(ASSISTANTS, "guesses on the KV cache of its target")
    why = kinds.get(model.metadata("general.architecture") or "")
    if why is None and C.llama_model_n_layer_nextn(model.handle) and is_block(path):
        why = "is a prediction block, which guesses from what its target computes"
    if why is not None:
        where = "give it to duo serve or duo up with --draft-model, beside that --model"
        raise StartupError(f"{path} {why}: {where}")


def _can_divide(model: Any) -> bool:
    """Return True if parts of a sequence can be copied: no state or window is kept beside its cells."""
    stateful = C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model)
    return not stateful and not C.llama_model_n_swa(model)


def _token_or_none(token: int) -> int | None:
    return int(token) if token >= 0 else None


class LlamaBackend(LlamaContext):
    """A model with one context. Implements Backend; raises StartupError if one of them cannot be made."""

    def __init__(self, options: LlamaOptions, attention: ChooseAttention | None = None) -> None:
        """Load a model; `attention` chooses flash attention on a CPU if the options do not decide."""
        before = own_memory()
        self.model = LoadedModel(options.model_path, options.weights)
        if own_memory() - before > self.model.n_bytes // 2:  # llama.cpp has copied the weights
            release_mapped(options.files)
        self.options = options
        self._model = self.model.handle
        try:
            _check_stands_alone(self.model, options.model_path)
            if is_open(options):
                options = with_attention(options, attention(self.model, options) if attention else "off")
            self._open_context(options)
        except BaseException:
            self.close()
            raise

    def _open_context(self, options: LlamaOptions) -> None:
        model = self._model
        self.name = model_name(options.model_path)
        if C.llama_model_has_encoder(model) or not C.llama_model_has_decoder(model):
            raise StartupError(
                f"{options.model_path} is not a decoder-only model: duo cannot generate with it"
            )
        if not _can_divide(model):
            options = replace(options, n_streams=0)
        if C.llama_model_n_swa(model):
            options = replace(options, n_seqs=min(options.n_seqs, MOST_SEQS))
        elsewhere = computes_elsewhere(options.weights)
        overlaps = (
            elsewhere and self.model.is_whole(options.weights.n_gpu_layers) and not options.weights.places
        )
        if overlaps:
            options = options.with_few_threads()
        self.options = options = with_tail(self.model, options)
        params = self._context_params(options)
        self.keys = keys_of(self.model, params)
        handle = self.model.context(params)
        if not handle:
            raise StartupError(
                f"llama.cpp makes no context of {options.n_cells} tokens{first_error()}: perhaps a smaller "
                "--ctx-size fits, or another --cache-type-v or --flash-attn"
            )
        self.attach(self.model, handle, n_streams=options.n_streams, overlaps=overlaps)
        self.layer_readers = Counter[int]()  # by layer: how many read its inputs (target_rows.py)
        self.vocab: Vocabulary = LlamaVocabulary(model)
        self.n_ctx = min(self.model.longest(options.rope), self.n_cells // max(1, options.n_streams))
        self.n_seqs = options.n_streams or options.n_seqs
        self.n_params, self.n_bytes = self.model.n_params, self.model.n_bytes
        self.chat_template = _template_named(model, None)
        self.tool_template = _template_named(model, b"tool_use")
        self.description = self.model.description
        self.can_trim = self._can_trim(elsewhere)
        self.can_copy = self.model.metadata("general.architecture") not in COMPRESSED
        self.can_share = not options.n_streams
        self.can_shift = self.can_trim and bool(C.llama_memory_can_shift(self.memory))

    def _context_params(self, options: LlamaOptions) -> Any:
        params = context_params(options)
        params.swa_full = True  # a trimmed sequence needs cells that its sliding window had passed
        if C.llama_model_n_swa(self._model):
            spare_sequence(params)
            # between parts of a decode llama.cpp gives away what guesses passed
            params.n_batch = params.n_ubatch = max(params.n_ubatch, params.n_seq_max)
        return params

    def _can_trim(self, elsewhere: bool) -> bool:
        """Return True if sequences can be trimmed. Raise StartupError if the model cannot be evaluated.

        A trial decode finds this out. It is skipped for a model on the CPU that keeps only KV cells. Any
        other model may have a state that cannot be trimmed, or a device with too little memory. A trial takes
        up to 4 s on busy cores, because threads wait for each other.

        Args:
            elsewhere: True if devices other than the CPU compute layers.
        """
        if self._only_has_cells and not elsewhere:
            return True
        self.can_trim = False
        with ThreadPoolExecutor(1) as aside:  # a thread that ends, so OpenMP's workers for it end too
            return aside.submit(self._can_forget).result() and not self.n_tail

    @property
    def _only_has_cells(self) -> bool:
        return not has_state(self.model) and self.model.metadata("general.architecture") not in COMPRESSED

    def _can_forget(self) -> bool:
        """Try to trim a sequence, and return True if it worked. Leaves the KV cache empty.

        Raises:
            StartupError: The model cannot be evaluated.
        """
        for position in range(2):
            batch = Batch()
            batch.extend(0, position, [self.vocab.bos or 0], 0)
            try:
                self.decode(batch)
            except BackendError as error:
                raise StartupError(
                    f"{self.name} cannot be evaluated: {error.message}{first_error()}"
                ) from error
        forgotten = bool(C.llama_memory_seq_rm(self.memory, 0, 1, -1))
        C.llama_memory_clear(self.memory, True)
        return forgotten

    def close(self) -> None:
        super().close()
        self.model.close()
