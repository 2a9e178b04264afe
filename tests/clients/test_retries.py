"""How long the SDKs wait that are told to come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import anthropic
import openai
import pytest

from server.errors import BusyError, DuoError, LostLenderError, LostModelError, StoreError
from tests.clients.test_openai_errors import HELLO
from tests.clients.written import writing

SHORTEST_S, LONGEST_S = 1, 60
"""openai 3.57 obeys up to 120 s and gives up at once above; anthropic 2.14 sleeps as long as it is told."""
ERRORS: list[DuoError] = [
    BusyError("all places are taken"),
    BusyError("ending", draining=True),
    LostModelError("the model is gone"),
    LostLenderError("b:1"),
    StoreError.unreachable(),
]

Ask: TypeAlias = Callable[[str], Any]


def ask_openai(url: str) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=1) as client:
        return client.chat.completions.create(model="toy", messages=HELLO, stream=False)


def ask_anthropic(url: str) -> Any:
    messages: Any = HELLO
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=1) as client:
        return client.messages.create(model="toy", max_tokens=9, messages=messages, stream=False)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds after which the SDKs would ask again; here they ask at once."""
    found: list[float] = []
    sdks: tuple[Any, ...] = (openai.OpenAI, anthropic.Anthropic)
    for sdk in sdks:
        calculated = sdk._calculate_retry_timeout

        def noted(*given: Any, calculated: Any = calculated, **more: Any) -> float:
            found.append(calculated(*given, **more))
            return 0.0

        monkeypatch.setattr(sdk, "_calculate_retry_timeout", noted)
    return found


def with_retries(kind: type[DuoError] = DuoError) -> Iterator[type[DuoError]]:
    for one in kind.__subclasses__():
        if hasattr(one, "retry_after_s"):
            yield one
        yield from with_retries(one)


def test_every_wait_is_short():
    kinds: list[Any] = list(with_retries())
    assert {type(error) for error in ERRORS} == set(kinds)
    assert all(SHORTEST_S <= kind.retry_after_s <= LONGEST_S for kind in kinds)


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[:12])
def test_sdks_wait_as_told(ask: Ask, error: Any, waits: list[float]):
    with writing(error, "well") as lead:
        reply = ask(lead.url)
    assert "well" in reply.model_dump_json()
    assert waits == [error.retry_after_s]
