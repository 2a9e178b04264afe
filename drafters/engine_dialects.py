"""Request and reply formats (dialects) of inference engines. Pure.

Sources: llama.cpp's tools/server/README.md (build 11549), Ollama's docs/api.md (0.13), OpenAI's reference of
completions, which LM Studio, vLLM and others follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import orjson

# Assumed probability of a token for which the engine sends none: how often SmolLM2's draft model is right
# (RESULTS, S). The lead learns the true value: 0.9 or 0.5 only changes how soon it verifies first guesses.
UNTOLD = 0.7


class EngineError(ValueError):
    """No answer from an engine, a refusal, or an answer that is invalid in the engine's dialect."""


class Said(NamedTuple):
    """A piece of a reply."""

    text: str = ""  # text that it adds
    token: int | None = None  # its id, if the engine sends one
    confidence: float = UNTOLD  # its probability, given all pieces before
    second: int | None = None  # id of the likeliest other token, if the engine sends one
    second_confidence: float = 0.0  # probability of the second
    is_end: bool = False  # the reply ends here
    ends_text: bool = False  # the model ended the text; False: the length limit did


class Dialect(Protocol):
    """One format of requests for a continuation, and of their replies."""

    name: str  # for logs
    path: str  # path of the request's URL
    takes_ids: bool  # prompts and replies are token ids

    def body(self, prompt: str | Sequence[int], n_tokens: int, model: str) -> dict[str, Any]:
        """Return a streaming request to continue the prompt greedily by at most n_tokens."""
        ...

    def read(self, line: bytes) -> list[Said]:
        """Return the pieces in a line of the answer.

        Raises:
            EngineError: The line is invalid in this dialect.
        """
        ...


class LlamaServer:
    """llama-server's /completion, which duo also offers."""

    name, path, takes_ids = "llama-server", "/completion", True

    def body(self, prompt: str | Sequence[int], n_tokens: int, model: str) -> dict[str, Any]:
        asked = {"prompt": prompt, "n_predict": n_tokens, "temperature": 0.0, "stream": True, "n_probs": 2}
        return asked | {"cache_prompt": True, "return_tokens": True}

    def read(self, line: bytes) -> list[Said]:
        event = _event_data(line)
        if event is None:
            return []
        told = {one.get("id"): one for one in event.get("completion_probabilities") or ()}
        said = [_with_second(int(token), told.get(token) or {}) for token in event.get("tokens") or ()]
        if said:
            said[0] = said[0]._replace(text=str(event.get("content", "")))
        elif event.get("content"):
            said = [Said(str(event["content"]))]
        if event.get("stop") is True:
            said.append(Said(is_end=True, ends_text=event.get("stop_type") == "eos"))
        return said


class LlamaServerText(LlamaServer):
    """llama-server's /completion with text instead of token ids, for a vocabulary other than the lead's."""

    takes_ids = False

    def read(self, line: bytes) -> list[Said]:
        return [one._replace(token=None, second=None, second_confidence=0.0) for one in super().read(line)]


class Ollama:
    """Ollama's /api/generate, without its template."""

    name, path, takes_ids = "Ollama", "/api/generate", False

    def body(self, prompt: str | Sequence[int], n_tokens: int, model: str) -> dict[str, Any]:
        options = {"temperature": 0.0, "num_predict": n_tokens}
        return {
            "model": model,
            "prompt": prompt,
            "raw": True,
            "stream": True,
            "logprobs": True,
            "options": options,
        }

    def read(self, line: bytes) -> list[Said]:
        event = _parsed_json(line) if line.strip() else {}
        pieces = event.get("logprobs") or ()
        said = [Said(str(one.get("token", "")), None, _probability_of(one.get("logprob"))) for one in pieces]
        text = str(event.get("response", ""))
        if "".join(one.text for one in said) != text:
            said = [Said(text)] if text else []
        if event.get("done") is True:
            said.append(Said(is_end=True, ends_text=event.get("done_reason") == "stop"))
        return said


class OpenAI:
    """OpenAI's /v1/completions, as LM Studio, vLLM and others offer it."""

    name, path, takes_ids = "OpenAI", "/v1/completions", False

    def body(self, prompt: str | Sequence[int], n_tokens: int, model: str) -> dict[str, Any]:
        asked = {"model": model, "prompt": prompt, "max_tokens": n_tokens, "temperature": 0.0}
        return asked | {"stream": True, "logprobs": 1}

    def read(self, line: bytes) -> list[Said]:
        event = _event_data(line)
        if event is None or not event.get("choices"):
            return []
        choice = event["choices"][0]
        text = str(choice.get("text") or "")
        told: dict[str, Any] = choice.get("logprobs") or {}
        pairs = zip(told.get("tokens") or (), told.get("token_logprobs") or (), strict=False)
        said = [Said(str(token), None, _probability_of(logprob)) for token, logprob in pairs]
        if "".join(one.text for one in said) != text:
            said = [Said(text)] if text else []
        if choice.get("finish_reason"):
            said.append(Said(is_end=True, ends_text=choice["finish_reason"] == "stop"))
        return said


def _with_second(token: int, told: dict[str, Any]) -> Said:
    """Return a token with its probability and the likeliest other token, as `told` by llama-server."""
    said = Said("", token, _probability_of(told.get("logprob")))
    likeliest: list[dict[str, Any]] = told.get("top_logprobs") or []
    other = next((one for one in likeliest if one.get("id") != token), None)
    if other is None or "id" not in other:
        return said
    return said._replace(second=int(other["id"]), second_confidence=_probability_of(other.get("logprob")))


def _event_data(line: bytes) -> dict[str, Any] | None:
    """Return the data of a line of server-sent events; None for [DONE] and for lines without data."""
    if not line.startswith(b"data:"):
        return None
    data = line[5:].strip()
    return None if data == b"[DONE]" else _parsed_json(data)


def _parsed_json(data: bytes) -> dict[str, Any]:
    try:
        event: Any = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"no JSON: {data[:60]!r}") from error
    if not isinstance(event, dict):
        raise EngineError(f"no JSON object: {data[:60]!r}")
    found: dict[str, Any] = event  # pyright: ignore[reportUnknownVariableType]
    if "error" in found:
        raise EngineError(str(found["error"])[:200])
    return found


def _probability_of(logprob: object) -> float:
    if not isinstance(logprob, int | float) or math.isnan(logprob):
        return UNTOLD
    return math.exp(min(0.0, float(logprob)))
