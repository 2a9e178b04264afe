"""duo top: watch a running lead in the terminal, by its /health and /metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import Field
from pydantic_settings import SettingsConfigDict
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from server.api.services import TOKEN_COUNTS
from server.client_settings import ClientSettings, answer_of
from server.errors import StartupError


class TopSettings(ClientSettings):
    """Watch a running lead: tokens/s, requests, accepted drafts, and the results of each drafter.

    Ctrl-C leaves.
    """

    model_config = SettingsConfigDict(
        env_prefix="DUO_TOP_", cli_prog_name="duo top", cli_shortcuts={"interval": "d"}
    )

    interval: float = Field(1.0, gt=0, le=3600, description="time between updates")
    once: bool = Field(False, description="print one interval and end")


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a lead at one time, by its /health and /metrics."""

    at: float  # seconds of a monotonic clock
    health: Mapping[str, Any]  # the body of /health
    totals: Mapping[str, float]  # counters, by metric name

    def since(self, before: Sample, name: str) -> float:
        """Return how much a counter has grown since `before`, or since 0 if the lead was restarted."""
        now, then = self.totals.get(name, 0.0), before.totals.get(name, 0.0)
        return now - then if now >= then else now


def sample(client: httpx.Client) -> Sample:
    """Ask a lead for its state. Raises StartupError if none answers."""
    health, metrics = answer_of(client, "/health"), answer_of(client, "/metrics")
    if metrics.status_code != 200:
        raise StartupError(f"{client.base_url} is not a lead: its /metrics answers {metrics.status_code}")
    try:
        totals = {
            one.name: one.value
            for family in text_string_to_metric_families(metrics.text)
            for one in family.samples
            if not one.labels
        }
        return Sample(time.monotonic(), {"drafters": [], **health.json()}, totals)
    except (ValueError, TypeError) as error:
        raise StartupError(f"{client.base_url} is not a lead: {error}") from error


def top(settings: TopSettings) -> int:
    """Run duo top until Ctrl-C, and return 0. Raises StartupError if no lead answers at first."""
    console = Console(highlight=False)
    with settings.client(httpx.Timeout(5)) as client:
        before = sample(client)
        if settings.once:
            time.sleep(settings.interval)
            console.print(view(sample(client), before))
            return 0
        with contextlib.suppress(KeyboardInterrupt):
            watch(console, client, before, lambda: time.sleep(settings.interval))
    return 0


def watch(console: Console, client: httpx.Client, before: Sample, wait: Callable[[], None]) -> None:
    """Show a lead's state after every wait(), until wait() raises. If no lead answers, show the error.

    before: The sample with which the first one is compared.
    """
    with Live(view(before, before), console=console, screen=True, auto_refresh=False) as live:
        while True:
            wait()
            try:
                now = sample(client)
            except StartupError as error:
                live.update(Text(error.message, "red"), refresh=True)
                continue
            live.update(view(now, before), refresh=True)
            before = now


def view(now: Sample, before: Sample) -> RenderableType:
    """Return the screen: a summary of what happened between two samples, and a table of drafters."""
    return Group(_summary_text(now, before), Text(), _drafter_table(now))


def _summary_text(now: Sample, before: Sample) -> RenderableType:
    health = now.health
    seconds = now.at - before.at
    tokens = now.since(before, "duo:tokens_predicted_total")
    drafted = now.since(before, "duo:draft_tokens_total")
    accepted = now.since(before, "duo:draft_tokens_accepted_total")
    slots = health.get("slots", {"busy": 0, "total": 0})
    rows = [
        ("state", Text(str(health.get("status", "unknown")), "" if health.get("status") == "ok" else "red")),
        ("tokens/s", _ratio_text(tokens, seconds)),
        ("tokens/step", _ratio_text(tokens, now.since(before, "duo:steps_total"), "{:.2f}")),
        ("accepted", f"{_percent_text(accepted, drafted)} of {drafted:.0f} drafted tokens"),
        ("prompt tokens/s", _ratio_text(now.since(before, "duo:prompt_tokens_total"), seconds)),
        ("requests", f"{slots['busy']} of {slots['total']} slots, {health.get('queued', 0)} waiting"),
        ("Python/step", f"{health.get('engine', {}).get('step_python_us', 0):.0f} µs"),
        ("since the start", f"{now.totals.get('duo:tokens_predicted_total', 0):.0f} tokens"),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(Text(name, "dim"), value)
    return grid


def _drafter_table(now: Sample) -> RenderableType:
    drafters: list[dict[str, Any]] = now.health["drafters"]
    if not drafters:
        return Text("no drafters", "dim")
    outcomes = sorted({name for one in drafters for name in one["counts"]} - set(TOKEN_COUNTS))
    table = Table("drafter", "model", "tokens", "accepted", *outcomes, "", box=box.SIMPLE, pad_edge=False)
    for one in drafters:
        counts: dict[str, int] = one["counts"]
        drafted = counts.get("drafted", 0)
        refused, rests = one["state"] == "refused", one.get("rests")
        remark = f"refused: {one['reason']}" if refused else f"rests: {rests}" if rests else ""
        table.add_row(
            str(one.get("name") or one["id"]),
            one["model"] if one.get("kind", "model") == "model" else f"{one['kind']}: {one['model']}",
            str(drafted),
            _percent_text(counts.get("accepted", 0), drafted),
            *(str(counts.get(name, 0)) for name in outcomes),
            Text(remark, "red" if refused else ""),
        )
    return table


def _ratio_text(n: float, over: float, form: str = "{:.0f}") -> str:
    return form.format(n / over) if over > 0 else "-"


def _percent_text(n: float, over: float) -> str:
    return f"{100 * n / over:.0f} %" if over > 0 else "-"
