"""Settings of a drafter. Each definition gives the flag, the environment variable and the default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import CliSuppress, SettingsConfigDict

from server.llama.model_settings import ModelSettings
from server.speculation.wire.presence import MAX_CAPACITY

BUNDLED_MODEL = Path(__file__).parent / "models" / "duo-tiny-draft-q8_0.gguf"
DEFAULT_MODEL = BUNDLED_MODEL.with_name("smollm2-draft.gguf")
"""Drafts for the default model of leads, SmolLM2-135M-Instruct."""


def _bundled_or_given(path: Path) -> Path:
    """Return the path of a bundled model if the path is only its file name, else the path unchanged."""
    bundled = BUNDLED_MODEL.with_name(path.name)
    return bundled if path.parent == Path() and not path.exists() and bundled.is_file() else path


class DrafterSettings(ModelSettings):
    """Speculate for the leads of a pool, with a small model or without one.

    Each flag can also be given in the environment, as DUO_DRAFTER_MODEL and so on; the URL of Redis also as
    DUO_REDIS.
    """

    model_config = SettingsConfigDict(
        env_prefix="DUO_DRAFTER_",
        frozen=True,
        cli_prog_name="duo-drafter",
        cli_shortcuts={"model": "m", "ctx-size": "c", "threads": "t", "batch-size": "b"},
    )

    redis: str | None = Field(
        None, description="the leads' Redis: redis://, rediss://, redis+sentinel:// or unix:// URL"
    )
    kind: str = Field(
        "model",
        description="model: a draft model; engine: another inference server, at --url; lookup: earlier text, "
        "without a model; replay: known texts with deliberate errors, to measure",
    )
    model: Annotated[Path, AfterValidator(_bundled_or_given)] = Field(
        DEFAULT_MODEL, description="the draft model's GGUF file, or a bundled model's name"
    )
    head: Path | None = Field(
        None,
        description="EAGLE-3 head or prediction block of the leads' model, to which they send hidden rows; "
        "--vocab-from has embeddings that it lacks",
    )
    url: str = Field(
        "http://127.0.0.1:8080",
        description="engine: URL of llama-server, Ollama, LM Studio, vLLM or another duo",
    )
    engine_model: str = Field("", description="engine: the model's name there")
    engine_key: str | None = Field(None, description="engine: its API key")
    translate: Path | None = Field(
        None, description="a GGUF file with the leads' vocabulary, if the draft model's differs"
    )
    pool: str = Field("default", description="drafters draft for leads of the same pool")
    name: str | None = Field(None, description="this drafter's name (default: from the host)")
    capacity: int = Field(
        0,
        ge=0,
        le=MAX_CAPACITY,
        description="maximum sessions at once; 0: 4 with a model or an engine, else 256",
    )
    threads: int = Field(1, ge=1, description="CPU threads of the model")
    ctx_size: int = Field(
        0, ge=0, description="KV cells for all sessions; 0: for each the model's context, at most 8192"
    )
    sequences: int = Field(16, ge=1, le=192, description="conversations kept, idle ones included")
    branches: int = Field(
        8, ge=0, le=64, description="alternatives drafted beside the likeliest guesses; 0: none"
    )
    path_min: float = Field(0.05, ge=0, le=1, description="stop a path below this probability")
    vocab_from: Path = Field(
        DEFAULT_MODEL, description="engine, head, lookup, replay: a GGUF file with the leads' vocabulary"
    )
    texts: Path | None = Field(None, description="replay: whole texts, a JSON list of token ids on each line")
    accept: float = Field(0.8, ge=0, le=1, description="replay: share of right guesses")
    td_ms: float = Field(1.0, ge=0, description="replay: milliseconds for a guess")
    seed: int = Field(0, ge=0, description="replay: seed of the errors")
    latency_ms: float = Field(0.0, ge=0, description="delay of messages each way, to measure")
    lent_by: CliSuppress[str] = Field("", description="browser: its machine, if that is not this one")
    lent_salt: CliSuppress[str] = Field("", description="browser: the salt of sessions that it may read")
    end_with_parent: CliSuppress[bool] = Field(False, description="end when standard input is closed")

    @property
    def redis_url(self) -> str | None:
        """Return the URL of Redis: --redis, else the leads' environment variable DUO_REDIS, else None."""
        return self.redis or os.environ.get("DUO_REDIS")
