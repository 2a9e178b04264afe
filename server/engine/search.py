"""Run beam searches in the KV cache. Each beam has a sequence; beams share the cells of common tokens."""

from __future__ import annotations

from dataclasses import dataclass

from server.engine.beams import MAX_BEAMS, BeamSearch
from server.engine.events import Committed, FinishReason
from server.engine.request import GenerationRequest
from server.engine.sequences import Sequences
from server.engine.session import Session
from server.engine.verify import Verdict
from server.errors import FieldError
from server.llama.backend import Backend, Batch, Logits


@dataclass(slots=True)
class _Search:
    """A running beam search."""

    beams: BeamSearch
    seqs: list[int]  # by live beam: the sequence with the prompt and all tokens of the beam except the last
    free: dict[int, int]  # by sequence without a beam: number of prompt tokens in it, all or 0
    further: list[int]  # sequences borrowed from other conversations' slots
    n_decided: int = 0  # committed tokens


class Searches:
    """All running beam searches.

    A search sets its session's n_kv, n_rows and n_extra once the prompt is evaluated. From then on
    Session.tokens are the prompt and the tokens with which all beams begin.
    """

    def __init__(self, backend: Backend, sequences: Sequences, n_slots: int) -> None:
        self._backend = backend
        self._sequences = sequences
        self._searches: dict[int, _Search] = {}
        most = min(MAX_BEAMS, sequences.n_main * sequences.most_leaves, backend.n_batch // n_slots)
        self.most_beams = max(1, most) if backend.can_trim else 1

    def vet(self, request: GenerationRequest) -> None:
        """Raise InvalidRequestError if there can never be room for the request's beams."""
        if request.n_beams > self.most_beams:
            raise FieldError("n_beams", f"at most {self.most_beams} on this server, not {request.n_beams}")
        if request.n_beams > 1 and request.n_keep is not None:
            raise FieldError("n_beams", "context_shift does not work with beams: leave one of them out")

    def n_conversations(self, request: GenerationRequest) -> int:
        """Return the number of conversations whose sequences the beams need, the session's own included."""
        return -(-request.n_beams // self._sequences.most_leaves)

    def begin(self, session: Session, further: list[int]) -> None:
        """Start the session's search; `further`: other conversations' sequences, to empty for its beams."""
        room = min(self._backend.n_ctx, self._backend.n_cells) - session.n_prompt
        limit = max(1, min(room, (self._backend.n_cells - session.n_prompt) // session.request.n_beams))
        if session.request.max_tokens is not None:
            limit = min(limit, session.request.max_tokens)
        for seq in further:
            self._sequences.trim(seq, 0)
        claimed = [one for seq in (session.seq, *further) for one in self._sequences.claim(seq)]
        free = dict.fromkeys(claimed[1:], 0)
        session.n_intact = session.n_prompt
        self._searches[session.id] = _Search(BeamSearch(session.request, limit), [session.seq], free, further)

    def add(self, batch: Batch, session: Session) -> None:
        """Add the rows that a beam search needs next, and ask for the logits of each beam's last row.

        The first call adds the rest of the prompt, each later call the last token of each beam.
        """
        search = self._searches[session.id]
        for seq, beam in zip(search.seqs, search.beams.live, strict=True):
            if beam.tokens:
                position = session.n_prompt + len(beam.tokens) - 1
                batch.extend(seq, position, beam.tokens[-1:], 1)
            else:
                batch.extend(seq, session.n_kv, session.tokens[session.n_kv :], 1)

    def advance(
        self, session: Session, rows: Logits, now: float
    ) -> tuple[Committed | None, FinishReason | None]:
        """Choose the beams to follow, and commit their common tokens.

        Args:
            session: The session of the search.
            rows: Logits of the rows that add() added.
            now: Seconds by the engine's clock.

        Returns:
            The decided tokens, if any, and the reason if the search ended.
        """
        search = self._searches[session.id]
        n_used = session.n_prompt + len(search.beams.live[0].tokens)
        self._move_beams(search, session.n_prompt, n_used, search.beams.advance(list(rows)))
        decided = search.beams.decided()
        new = decided.tokens[search.n_decided :]
        known = min(len(new), len(session.ahead))  # decided before the session was preempted
        told = slice(search.n_decided + known, None)
        search.n_decided = len(decided.tokens)
        session.ahead = session.ahead[known:]
        session.commit(Verdict(new, ()), {}, now)
        self._count_cells(session, search)
        tokens = decided.tokens[told]
        committed = Committed(tokens, (None,) * len(tokens), logprobs=decided.logprobs[told], at=now)
        ending = "stop" if new and new[-1] in session.request.stop_tokens else "length"
        return committed if tokens else None, ending if search.beams.done else None

    def end(self, session: Session) -> list[int]:
        """Forget the session's search, if there is one, and return the sequences that must be emptied.

        The session's own sequence still holds the evaluated part of the prompt.
        """
        search = self._searches.pop(session.id, None)
        session.n_rows, session.n_extra = 1, 0
        return search.further if search else []

    def _move_beams(self, search: _Search, n_prompt: int, n_used: int, parents: list[int]) -> None:
        """Give each new live beam a sequence with its first n_used tokens, that is, all except the last.

        Args:
            search: The search.
            n_prompt: Number of the prompt's tokens.
            n_used: Number of tokens that each beam's sequence holds.
            parents: For each new beam, the index of the old one that it continues.
        """
        old, used = search.seqs, set[int]()
        for i, seq in enumerate(old):
            if i not in parents:
                self._backend.trim(seq, n_prompt)
                search.free[seq] = n_prompt
        search.seqs = []
        for parent in parents:
            seq = old[parent]
            if parent in used:
                seq, start = search.free.popitem()
                self._backend.copy(old[parent], seq, start, n_used)
            used.add(parent)
            search.seqs.append(seq)

    def _count_cells(self, session: Session, search: _Search) -> None:
        """Set the session's n_kv, n_rows and n_extra for the next step.

        n_extra is an upper bound: a cell of a token that is not committed counts once for each beam that
        shares it.
        """
        session.n_kv = len(session.tokens) - 1
        live = search.beams.live
        if live:
            n_before = len(live[0].tokens) - 1
            n_common = min(search.n_decided, n_before)
            n_cells = session.n_prompt + n_common + len(live) * (n_before - n_common)
            session.n_rows, session.n_extra = len(live), n_cells - session.n_kv
