"""Choose flash attention for a lead on a CPU if its steps have been faster with it (docs/adr/0012)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from server.engine.meter import StepKind
from server.errors import BackendError
from server.lead.calibration import DISTURBED
from server.lead.recollection import keep, of_model, recall
from server.llama.attention_times import DEPTHS, WIDTHS, AttentionTimes, Kind, first_s, measure
from server.llama.context import LlamaContext
from server.llama.library import LoadedModel
from server.llama.options import LlamaOptions

logger = logging.getLogger("duo.lead")

# Assumed tokens of an idle conversation beside the running one: two turns with prompts of 70 tokens and
# replies of 214 (means of LMSYS-Chat-1M, arXiv:2309.11998). The assumed steps (ASSUMED) are in the middle of
# the first and of the second reply, half with one row, half with four. Without the idle conversation, the
# bundled model on an EPYC with AVX-512 begins without flash attention, and its replies are 11 percent slower.
# With two idle ones nothing changes. A 400M model on an Intel Xeon begins without it in either case
# (docs/adr/0012).
IDLE = 2 * (70 + 214)
ASSUMED = [StepKind(n_rows, n_tokens + IDLE, n_tokens) for n_rows in (1, 4) for n_tokens in (177, 461)]
BEFORE = 1000  # weight of ASSUMED, in steps. Twice: real usage takes twice as long to outweigh it
MOST_STEPS = 100_000  # steps that count; older ones are scaled down. Twice: a change of use shows later
# Minimum share of the time that a later start must save to turn flash attention on or off: a change makes
# saved conversations on disk useless. 0.02: two measurements differ by as much; 0.1: up to 10 percent are
# given up.
MIN_GAIN = 0.05
# Flash attention of a first start. If "off" is wrong, an EPYC's replies take 11 percent longer and its
# prompts 3 to 30 percent. If "on" is wrong, a Xeon's steps after 3,000 tokens take 2.5 times as long, with
# four rows 5.5 times (docs/adr/0012).
UNMEASURED: Kind = "off"


Kinds = Mapping[StepKind, float]  # number of steps of each kind


class AttentionChoice:
    """Chooses flash attention for one model, from recorded decode times and counts of earlier steps."""

    def __init__(self) -> None:
        self.kinds: Counter[StepKind] = Counter()  # number of this process's steps of each kind
        self._what: tuple[object, ...] = ()
        self._times: AttentionTimes | None = None
        self._kind: Kind | None = None  # the kind chosen by _times; None: not chosen yet
        self._earlier: Kinds = {}  # steps of earlier processes

    def __call__(self, model: LoadedModel, options: LlamaOptions) -> Kind:
        """Return the faster kind by the recorded times, without measuring; UNMEASURED if there are none.

        LlamaBackend calls this if the options do not decide on flash attention.
        """
        self._what = (*of_model(replace(options, n_tail=0)), WIDTHS, DEPTHS)
        known = recall("attention", self._what)
        if known is None:
            return UNMEASURED
        self._times, before = AttentionTimes(known["seconds"]), known["kind"]
        self._earlier = {StepKind(*kind): n for *kind, n in known["kinds"]}
        self._kind, gain = chosen(self._times, self._earlier, before, shared=not options.n_streams)
        how = {"on": "with", "off": "without"}[self._kind]
        logger.info("  steps    %s flash attention, which takes %.0f percent less here", how, 100 * gain)
        return self._kind

    @property
    def was_asked(self) -> bool:
        """Return True if the options left the choice of flash attention to this lead."""
        return bool(self._what)

    def measure_again(
        self, model: LoadedModel, options: LlamaOptions, make: Callable[[], LlamaContext] = LlamaContext
    ) -> None:
        """Time the model, unless recorded times still hold. The next start uses the new times.

        Args:
            model: The loaded model.
            options: The options given to __call__().
            make: Returns a new context; exceptions of its decodes pass through.
        """
        if self._times is not None and not was_disturbed(self._times, model, options, make):
            return
        if found := measure(model, options, make=make):
            self._times, self._kind = found, None
            self._keep_measured(found, self._earlier)

    def keep(self) -> None:
        """Record the steps of this process for later starts, if times have been measured."""
        if self._times is not None:
            self._keep_measured(self._times, merged(self._earlier, self.kinds))

    def _keep_measured(self, times: AttentionTimes, kinds: Kinds) -> None:
        steps = [[*kind, n] for kind, n in kinds.items()]
        keep("attention", self._what, {"seconds": times.seconds, "kind": self._kind, "kinds": steps})


def was_disturbed(
    times: AttentionTimes, model: LoadedModel, options: LlamaOptions, make: Callable[[], LlamaContext]
) -> bool:
    """Return True if decodes of the model are now much faster than the recorded `times`.

    Return False if they cannot be measured. For `make` see AttentionChoice.measure_again().
    """
    try:
        now = first_s(model, options, make)
        then = [at[0] for at in times.seconds["off"][: len(now)]]
        return any(now_s < DISTURBED * then_s for now_s, then_s in zip(now, then, strict=True))
    except BackendError as error:
        logger.warning("attention could not be measured: %s", error.message)
        return False


def chosen(times: AttentionTimes, kinds: Kinds, now: Kind | None, *, shared: bool) -> tuple[Kind, float]:
    """Return the faster kind of attention, and the fraction of time that it saves.

    The fraction refers to the total time of the given steps and of ASSUMED. If the other kind is faster than
    `now`, but saves less than MIN_GAIN, `now` is returned; the fraction is then negative.

    Args:
        times: Measured times.
        kinds: Number of steps so far, by their rows, tokens and cells.
        now: The kind of attention used so far; None: no kind was chosen.
        shared: True if a row without flash attention also passes over the cells of other conversations.
    """
    on = off = 0.0
    for kind, n in [*kinds.items(), *((kind, BEFORE / len(ASSUMED)) for kind in ASSUMED)]:
        on += n * times.step_s("on", kind.n_rows, kind.n_tokens)
        off += n * times.step_s("off", kind.n_rows, kind.n_cells if shared else kind.n_tokens)
    best: Kind = "on" if on < off else "off"
    gain = 1 - min(on, off) / max(on, off)
    if now is not None and best != now and gain < MIN_GAIN:
        return now, -gain
    return best, gain


def merged(earlier: Kinds, later: Kinds) -> Kinds:
    """Add both counts of steps. If the total exceeds MOST_STEPS, `earlier` is scaled down first."""
    n_earlier, n_later = sum(earlier.values()), sum(later.values())
    share = min(1.0, max(0.0, MOST_STEPS - n_later) / max(1.0, n_earlier))
    kinds = {kind: share * n for kind, n in earlier.items()}
    return kinds | {kind: kinds.get(kind, 0.0) + n for kind, n in later.items()}
