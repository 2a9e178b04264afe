"""Commit a step: draw and verify tokens, and report them to proposer and caller."""

from __future__ import annotations

import logging

from server.engine import endings
from server.engine.events import Committed, Progress
from server.engine.proposer import Outcome, Plan, Proposal
from server.engine.rejection import judge
from server.engine.request import GenerationRequest
from server.engine.scheduler import Work
from server.engine.sequences import RowLayout
from server.engine.session import Session
from server.engine.state import EngineState
from server.engine.verify import Verdict, verify
from server.errors import BackendError, DuoError
from server.llama.backend import Logits
from server.sampling.draw import Distribution
from server.sampling.logprobs import TokenLogprobs, drawn_logprobs, token_logprobs

logger = logging.getLogger("duo.engine")


class StepCommit:
    """Commits the rows of one step, session by session."""

    __slots__ = ("_plan", "_state", "outcomes")

    def __init__(self, state: EngineState, plan: Plan) -> None:
        self._state, self._plan = state, plan
        self.outcomes: list[Outcome] = []  # one for each session for which guesses were requested

    def add(self, work: Work, proposal: Proposal, layout: RowLayout, logits: Logits, at: int) -> int:
        """Commit one session's rows. A session that fails, for example at a limit of its grammar, ends alone.

        Args:
            work: The session and its rows without guesses.
            proposal: Its guesses.
            layout: How its rows were added to the batch.
            logits: Logits of the whole step, (wanted rows, vocab size).
            at: Index in `logits` of the session's first row.

        Returns:
            The index of the next session's first row.
        """
        session, state = work.session, self._state
        if session.reports_prompt:
            n_reported = work.n_pending - work.completes
            _report_prompt(state, work, logits[at : at + n_reported])
            at += n_reported
        if not work.completes:
            _advance_prompt(state, work)
            return at
        end = at + session.n_rows + len(proposal.tokens) + layout.n_pad
        try:
            if session.request.n_beams > 1:
                _advance_search(state, session, logits[at:end])
            else:
                self._verify_work(work, proposal, layout, logits[at:end])
        except DuoError as error:
            endings.fail(state, session, error)
        return end

    def _verify_work(self, work: Work, proposal: Proposal, layout: RowLayout, rows: Logits) -> None:
        """Draw the session's tokens, and commit them.

        Args:
            work: The session and its rows without guesses.
            proposal: Its guesses.
            layout: How its rows were added to the batch.
            rows: Logits after the last committed token, after each guess, and after padding.
        """
        session, state, undrafted_s = work.session, self._state, self._plan.undrafted_s
        asked = session.request
        drawn: list[Distribution] | None = [] if asked.drawn_from and asked.n_logprobs is not None else None
        try:
            if proposal.tokens or drawn is not None or state.limits.by_rejection:
                verdict = _decide_tokens(
                    session, proposal, rows, drawn, by_rejection=state.limits.by_rejection
                )
            else:
                verdict = Verdict((session.sampler.choose(rows[0], session.position),), ())
        except Exception as error:
            raise _undrawn_error(error) from error
        nodes = verdict.nodes[: len(verdict.tokens) - 1]  # the last token stays pending, even if guessed
        if len(nodes) < len(proposal.tokens) or layout.n_pad or layout.n_shadows:
            state.sequences.keep_accepted(session, layout, nodes)
        else:
            session.evaluated(work.n_pending + len(nodes))
        tally = proposal.tally(verdict.nodes)
        session.commit(verdict, tally, state.clock(), undrafted_s)
        if session.drafts and self._plan.asked:
            self.outcomes.append(Outcome(session.id, len(verdict.tokens), tally))
        logprobs = _logprobs_of(verdict, rows, drawn, asked)
        state.emit(session.id, _committed_event(verdict, proposal, logprobs, session.last_at, undrafted_s))
        if reason := session.end_reason():
            endings.finish(state, session, reason)


def _advance_prompt(state: EngineState, work: Work) -> None:
    """Count the work's prompt rows as evaluated, and report the progress if requested."""
    session = work.session
    session.evaluated(work.n_pending)
    if session.request.progress and not session.n_steps:
        state.emit(session.id, Progress(session.n_kv, state.clock()))
    if session.n_kv == session.checkpoint_at:
        state.sequences.checkpoints.save_turn(session.seq, session.n_kv)


def _report_prompt(state: EngineState, work: Work, rows: Logits) -> None:
    """Report the logprobs of the next prompt tokens; rows[i] has the logits that predict the i-th of them.

    Nothing is reported for tokens of a reply that are evaluated again (Session.strides).
    """
    if work.session.strides:
        return
    session, n_top = work.session, work.session.request.n_logprobs or 0
    after = session.tokens[session.n_kv + 1 : session.n_kv + 1 + len(rows)]
    told = tuple(token_logprobs(row, token, n_top) for row, token in zip(rows, after, strict=True))
    state.emit(session.id, Progress(session.n_kv + len(told), state.clock(), told))


def _advance_search(state: EngineState, session: Session, rows: Logits) -> None:
    """Advance a beam search by one token; `rows`: the logits after each of its beams."""
    try:
        committed, reason = state.searches.advance(session, rows, state.clock())
    except Exception as error:
        raise _undrawn_error(error) from error
    if committed:
        state.emit(session.id, committed)
    if reason:
        endings.finish(state, session, reason)


def _undrawn_error(error: Exception) -> DuoError:
    """Convert an exception of a draw to the error that ends the session; log it if it is unexpected."""
    if isinstance(error, DuoError):
        return error
    logger.error("no token could be drawn", exc_info=error)
    why = "the model computed no numbers, or every token is banned"
    return BackendError(f"no token could be drawn: {why}")


def _decide_tokens(
    session: Session,
    proposal: Proposal,
    rows: Logits,
    drawn: list[Distribution] | None,
    *,
    by_rejection: bool,
) -> Verdict:
    """Return the tokens to commit, and advance the session's sampler by them.

    Args:
        session: The session of the rows.
        proposal: Its guesses.
        rows: Logits after the last committed token, then after each node of the proposal.
        drawn: A list to which the distribution of each drawn token is appended; None: do not keep them.
        by_rejection: Use the rule of rejection.py.
    """
    sampler, position, stop = session.sampler, session.position, session.request.stop_tokens
    sampling = session.request.sampling
    by_rejection = by_rejection and not sampling.mirostat

    def draw(node: int, i: int) -> int:
        if drawn is not None:
            drawn.append(sampler.distribution(rows[1 + node], position + i))
        return sampler.choose(rows[1 + node], position + i)

    def target(i: int) -> Distribution:
        if i:
            sampler.accept(proposal.tokens[i - 1])
        found = sampler.distribution(rows[i], position + i)
        if drawn is not None:
            drawn.append(found)
        return found

    if not by_rejection:
        return verify(proposal, draw, stop, session.n_left if proposal.tokens else 1)
    randomness = sampling.seed, position
    verdict = judge(proposal.tokens, proposal.drafted, target, randomness, stop, session.n_left)
    sampler.accept(verdict.tokens[-1])
    return verdict


def _logprobs_of(
    verdict: Verdict, rows: Logits, drawn: list[Distribution] | None, asked: GenerationRequest
) -> tuple[TokenLogprobs, ...]:
    """Return the logprobs of each token and its alternatives; () if the request does not ask for them.

    They come from the distributions in `drawn` if it is given, else from the logits in `rows`. Both are those
    of _decide_tokens().
    """
    if (n_top := asked.n_logprobs) is None:
        return ()
    if drawn is not None:
        told = zip(drawn, verdict.tokens, strict=False)
        return tuple(drawn_logprobs(one, token, n_top) for one, token in told)
    read = zip((0, *(1 + node for node in verdict.nodes)), verdict.tokens, strict=False)
    return tuple(token_logprobs(rows[i], token, n_top, asked.logprobs_of) for i, token in read)


def _committed_event(
    verdict: Verdict, proposal: Proposal, logprobs: tuple[TokenLogprobs, ...], now: float, undrafted_s: float
) -> Committed:
    """Return the event that reports the step's tokens to the caller.

    now: Seconds by the engine's clock. undrafted_s: As in Plan.
    """
    if not proposal.tokens:
        return Committed(verdict.tokens, (None,), 0, (), logprobs, now, undrafted_s)
    nodes, n_accepted = verdict.nodes, len(verdict.nodes)
    sources = [proposal.sources[node] for node in nodes]
    if not n_accepted or nodes[-1] == n_accepted - 1:  # the accepted nodes are the first ones
        rejected = tuple(proposal.tokens[n_accepted:])
    else:
        rejected = tuple(token for i, token in enumerate(proposal.tokens) if i not in nodes)
    padding = (None,) * (len(verdict.tokens) - n_accepted)
    return Committed(
        verdict.tokens, (*sources, *padding), len(proposal), rejected, logprobs, now, undrafted_s
    )
