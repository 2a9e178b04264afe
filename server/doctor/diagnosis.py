"""Hold the findings of duo doctor, and explain them to a person. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

NOBODY, INSIDE = "no drafts", "the draft model inside the lead"
BESIDE, AWAY = "a drafter beside it, on this machine", "a second device"
GAIN = 1.05  # minimum speedup that counts as a gain: the choice of texts alone changes results by 5 percent
BUSY = "other programs keep this machine busy, so that the times measured now say little"
GIB_BYTES, MIB_BYTES = 1 << 30, 1 << 20  # bytes


@dataclass
class Findings:
    """Measurements of a machine and two models; times in seconds."""

    step_s: list[float] = field(default_factory=list[float])  # a step of the target, by its number of rows
    beside_s: list[float] | None = None  # such a step while a drafter runs here; None if duo up starts none
    guess_s: float | None = None  # a guess of the draft model in the lead
    read_s: float = 0.0  # reading a prompt by the draft model
    guess_beside_s: float | None = None  # a guess of a drafter beside the target
    n_tokens: int = 0  # number of tokens of the replies that were judged
    acceptance: float | None = None  # share of the guesses that were right
    redis_s: float | None = None  # round trip from here to Redis
    weights_bytes: int = 0  # weights of both models
    free_bytes: int = 0  # free host memory
    free_gpu_bytes: list[int] = field(default_factory=list[int])
    rates: dict[str, float] = field(default_factory=dict[str, float])  # tokens per second, by who drafts
    chosen: str = ""  # who drafts under duo up
    obstacle: str | None = None  # why this draft model cannot draft for this target
    disturbed: bool = False  # other programs kept the machine busy, so there is no verdict
    beside_disturbed: bool = False  # other programs did so while target and drafter ran together


def report_lines(findings: Findings) -> list[str]:
    """Return the findings as a page of text."""
    if findings.disturbed:
        return [
            "",
            _memory_text(findings),
            "",
            f"No verdict: {BUSY}. Run duo doctor again once they have ended.",
        ]
    lines = ["", *_machine_text(findings)]
    if findings.obstacle is not None:
        return [*lines, "", f"Verdict: this draft model cannot draft for this target: {findings.obstacle}."]
    return [
        *lines,
        *_drafts_text(findings),
        "",
        *_table_text(findings),
        "",
        f"Verdict: {_verdict_text(findings)}",
    ]


def _machine_text(findings: Findings) -> list[str]:
    step_s = findings.step_s
    several = (f"{rows} take {step_s[rows] / step_s[1]:.2f} times as long" for rows in (4, 8, 16))
    return [
        f"target   {1e3 * step_s[1]:.1f} ms for a token; at once {', '.join(several)}",
        _memory_text(findings),
    ]


def _memory_text(findings: Findings) -> str:
    gpus = (f", {_size_text(free)} on a GPU" for free in findings.free_gpu_bytes)
    weights, free = _size_text(findings.weights_bytes), _size_text(findings.free_bytes)
    return f"memory   {weights} of weights; {free} free{''.join(gpus)}"


def _size_text(n_bytes: int) -> str:
    return f"{n_bytes / GIB_BYTES:.1f} GiB" if n_bytes >= GIB_BYTES else f"{n_bytes / MIB_BYTES:.0f} MiB"


def _drafts_text(findings: Findings) -> list[str]:
    right = 100 * (findings.acceptance or 0.0)
    lines = [
        f"draft    {1e3 * (findings.guess_s or 0.0):.2f} ms for a guess; {right:.0f} % of "
        f"{findings.n_tokens} guesses were right",
        f"Redis    {1e3 * (findings.redis_s or 0.0):.2f} ms there and back",
    ]
    if findings.beside_disturbed:
        lines.append(f"both     at once: not known, since {BUSY}")
    if findings.beside_s and findings.guess_beside_s:
        slower = findings.beside_s[1] / findings.step_s[1]
        lines.append(
            f"both     at once: {1e3 * findings.guess_beside_s:.2f} ms for a guess; a token of the target "
            f"takes {slower:.2f} times as long"
        )
    return lines


def _table_text(findings: Findings) -> list[str]:
    width = max(map(len, findings.rates))
    lines = [f"{'drafts are made by':{width}}   tokens/s"]
    for name, rate in findings.rates.items():
        mark = "   as duo up does" if name == findings.chosen else ""
        lines.append(f"{name:{width}} {rate:10.1f}   {rate / findings.rates[NOBODY]:.2f} times{mark}")
    return lines


def _verdict_text(findings: Findings) -> str:
    rates, plain = findings.rates, findings.rates[NOBODY]
    gain = rates[findings.chosen] / plain
    away = max(rate for name, rate in rates.items() if name.startswith(AWAY)) / plain
    here = f"duo up should be {gain:.1f} times as fast here as without drafts."
    if gain < GAIN:
        here = "drafts made on this machine gain little; the lead does without those that do not pay."
    more = "A second device adds little."
    if away > GAIN * gain:
        more = f"A second device could make it {away:.1f} times."
    return f"{here} {more} This is for one reply at temperature 0; texts differ in how well they are guessed."
