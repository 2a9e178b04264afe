"""Run duo doctor: measure this machine, and report where drafts would pay, and how much."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from rich.console import Console

from server.doctor.diagnosis import AWAY, BESIDE, INSIDE, NOBODY, Findings, report_lines
from server.doctor.examination import (
    DisturbedError,
    drafting,
    guess_seconds,
    guesses,
    pace,
    replies,
    step_seconds,
)
from server.doctor.forecast import Device, Guess, Seconds, Text, beside, inside, n_tokens, undrafted
from server.errors import StartupError
from server.flags import n_cores
from server.lead.attention import AttentionChoice
from server.lead.loading import load_target, prepared
from server.lead.serving import template_of
from server.lead.tiers import free_memory
from server.llama.library import default_cells, free_memory_of_gpus
from server.llama.llamacpp import LlamaBackend, LlamaOptions
from server.llama.parts import parts
from server.llama.tensors import on_host
from server.local.bundled import draft_for
from server.local.embedded import EmbeddedServer
from server.local.placement import Machine, Placement, place
from server.settings import UpSettings
from server.speculation.wire.presence import mismatch, vocabulary_card
from server.speculation.wire.redis_client import check, connect

QUESTIONS = (
    "Explain in a few sentences what a hash table is.",
    "Write a Python function that counts the words in a text.",
    "How do I read a file line by line in Python?",
    "Write a short letter that asks a neighbour to water the plants.",
    "What is the difference between a process and a thread?",
    "Give me a JSON object with a name, an age and a list of three hobbies.",
    "Summarise in two sentences why the sky is blue.",
    "Fix this function: def add(a, b): return a - b",
)
# Seconds of a step outside the decode, without and with guesses (RESULTS.md, section A).
# Twice: the forecast for steps of 40 ms is 1 percent lower, for steps of 5 ms 8 percent.
PLAIN_PYTHON_S, DRAFTED_PYTHON_S = 0.00015, 0.0005
GUESS_PYTHON_S = 0.0001  # additional seconds for each guess of a draft model in the lead (section H)
SPEEDS = (2, 4, 8, 16)  # assumed guesses that a second device makes during one step of the target
PINGS = 50


class DoctorSettings(UpSettings):
    """Measure which placement of the draft model pays here, and what a second device would bring.

    Takes the flags of duo up.
    """

    model_config = SettingsConfigDict(cli_prog_name="duo doctor")

    json_output: bool = Field(False, alias="json", description="print JSON")
    questions: Path | None = Field(
        None, description="a file to measure with: a request's messages as JSON on each line"
    )
    guess_ms: float | None = Field(None, gt=0, description="second device: draft model's time for a token")
    latency_ms: float = Field(1.0, ge=0, description="second device: latency, one way")


def doctor(settings: DoctorSettings) -> int:
    """Measure, print the findings, and return 0. Raises StartupError if a model cannot be loaded."""
    console = Console(stderr=settings.json_output, highlight=False, soft_wrap=True)
    findings = examine(settings, console)
    if settings.json_output:
        print(json.dumps(asdict(findings), indent=2))
    else:
        console.print("\n".join(report_lines(findings)))
    return 0


def examine(settings: DoctorSettings, console: Console) -> Findings:
    """Measure both models as duo up would place them. Progress is shown on the console.

    Raises StartupError or BackendError.
    """
    settings = prepared(settings.model_copy(update={"mmproj_auto": False}))  # no projector is measured
    machine = Machine(n_cores(), free_memory_of_gpus())
    draft = draft_for(settings, machine)
    if draft is None:
        raise StartupError(f"no bundled draft model fits {settings.model.name}: give one with --draft-model")
    n_bytes = _model_bytes(settings.model) - on_host(settings.model, settings.weights.places)
    placement = place(settings, machine, _model_bytes(draft), n_bytes)
    findings = Findings(free_bytes=free_memory(), free_gpu_bytes=list(machine.gpus))
    findings.weights_bytes = _model_bytes(draft) + _model_bytes(settings.model)
    console.print(f"The target, {settings.model.name}: its steps, and what it says …")
    with closing(_load_target(settings, settings.threads or machine.n_cores)) as target:
        try:
            findings.step_s = step_seconds(target)
        except DisturbedError:
            findings.disturbed = True
            return findings
        if not any(findings.step_s):
            raise StartupError(
                f"cannot measure steps of {settings.model}: recurrent models take no tokens back"
            )
        card = vocabulary_card(target.vocab)
        prompts = _prompts_of(settings, target)
        said = replies(target, prompts)
    text: list[list[Guess]] = []
    console.print(f"The draft model, {draft.name}: its guesses …")
    with closing(LlamaBackend(_draft_options(settings, machine.n_cores, draft))) as model:
        findings.obstacle = mismatch(card, vocabulary_card(model.vocab))
        if findings.obstacle is None:
            findings.guess_s = guess_seconds(model)
            judged = [guesses(model, *pair) for pair in zip(prompts, said, strict=True)]
            text = [reply for reply, _ in judged]
            findings.read_s = median(seconds for _, seconds in judged)
    if findings.obstacle is None:
        if not placement.sync or machine.has_few_cores:
            console.print("Both at once …")
            _measure_beside(findings, settings, machine, placement, draft)
        findings.redis_s = _round_trip(settings.redis)
        _forecast_for(findings, text, placement, settings)
    return findings


def _load_target(settings: DoctorSettings, n_threads: int) -> LlamaBackend:
    """Load the target as a lead would."""
    return load_target(settings, n_threads, AttentionChoice())


def _measure_beside(
    findings: Findings, settings: DoctorSettings, machine: Machine, placement: Placement, draft: Path
) -> None:
    n_layers = settings.gpu_layers_draft if placement.gpu_layers is None else placement.gpu_layers
    settings = settings.model_copy(update={"gpu_layers_draft": n_layers})
    options = _draft_options(settings, placement.threads, draft, placement.draft_gpus)
    n_threads = settings.threads or placement.target_threads or machine.n_cores
    if placement.target_gpu is not None:
        settings = settings.model_copy(update={"split_mode": "none", "main_gpu": placement.target_gpu})
    try:
        with drafting(options) as drafter, closing(_load_target(settings, n_threads)) as target:
            findings.beside_s = step_seconds(target, alone=False)
            findings.guess_beside_s = pace(drafter)
    except DisturbedError:
        findings.beside_disturbed = True
        findings.disturbed = not placement.sync  # duo up's choice is not known


def _forecast_for(findings: Findings, text: Text, placement: Placement, settings: DoctorSettings) -> None:
    n = findings.n_tokens = n_tokens(text)
    findings.acceptance = sum(guess.right for reply in text for guess in reply) / max(1, n)
    seconds, rates = _with_python(findings.step_s), findings.rates
    guess_s = (findings.guess_s or 0.0) + GUESS_PYTHON_S
    rates[NOBODY] = n / undrafted(text, seconds)
    rates[INSIDE] = n / inside(text, seconds, guess_s, findings.read_s)
    if findings.beside_s and findings.guess_beside_s:
        here = Device(findings.guess_beside_s, (findings.redis_s or 0.0) / 2)
        rates[BESIDE] = n / beside(text, _with_python(findings.beside_s), here)
    way = INSIDE if placement.sync else BESIDE
    findings.chosen = way if settings.drafters and way in rates else NOBODY
    speeds = [settings.guess_ms / 1e3] if settings.guess_ms else [seconds[1] / speed for speed in SPEEDS]
    for guess_s in speeds:
        device = Device(guess_s, settings.latency_ms / 1e3)
        name = f"{AWAY} that guesses in {1e3 * guess_s:.1f} ms, {settings.latency_ms:g} ms away"
        rates[name] = n / beside(text, seconds, device)


def _with_python(step_s: Sequence[float]) -> Seconds:
    return [s + (PLAIN_PYTHON_S if rows == 1 else DRAFTED_PYTHON_S) for rows, s in enumerate(step_s)]


def _prompts_of(settings: DoctorSettings, target: LlamaBackend) -> list[list[int]]:
    """Return the prompts to measure with, as token ids. Raises StartupError if --questions is unreadable."""
    asked: list[Any] = [[{"role": "user", "content": question}] for question in QUESTIONS]
    if settings.questions is not None:
        try:
            asked = [
                json.loads(line)["messages"] for line in settings.questions.read_text().splitlines() if line
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartupError(f"--questions {settings.questions} cannot be read: {error!r}") from error
    template = template_of(settings, target)
    vocab, found = target.vocab, list[list[int]]()
    for messages in asked:
        ids = vocab.tokenize(template.render(messages), special=True)
        begun = vocab.add_bos and vocab.bos is not None and ids[:1] != [vocab.bos]
        found.append([vocab.bos, *ids] if begun and vocab.bos is not None else ids)
    return found


def _draft_options(
    settings: DoctorSettings, n_threads: int, draft: Path, gpus: Sequence[int] = ()
) -> LlamaOptions:
    weights = settings.draft_weights
    if gpus:
        weights = settings.model_copy(update={"split_mode": "none", "main_gpu": gpus[0]}).draft_weights
    n_cells = default_cells(draft, 1)
    return LlamaOptions(draft, n_cells, 1, n_threads=settings.draft_threads or n_threads, weights=weights)


def _round_trip(url: str | None) -> float:
    """Return the seconds of a round trip to Redis (`url` None: an embedded one). Raises StartupError."""
    with ExitStack() as stack:
        url = url or stack.enter_context(EmbeddedServer()).url
        check(url)
        client = stack.enter_context(closing(connect(url)))
        times: list[float] = []
        for _ in range(PINGS):
            began = time.perf_counter()
            client.ping()
            times.append(time.perf_counter() - began)
    return median(times)


def _model_bytes(model: Path) -> int:
    """Return the bytes of all parts of a model's file. Raises StartupError."""
    if not model.is_file():
        raise StartupError(f"no model file at {model}")
    return sum(part.stat().st_size for part in parts(model))
