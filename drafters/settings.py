"""What a person can set of a drafter: one definition each for the flag, the environment and the default."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, CliSuppress, SettingsConfigDict

BUNDLED_MODEL = Path(__file__).parent / "models" / "duo-tiny-draft-q8_0.gguf"


class DrafterSettings(BaseSettings):
    """Speculate for the leads of a pool with a small model of the same vocabulary. Each flag can also be
    given in the environment, as DUO_DRAFTER_MODEL and so on; the URL of Redis also as DUO_REDIS."""

    model_config = SettingsConfigDict(
        env_prefix="DUO_DRAFTER_",
        frozen=True,
        cli_prog_name="duo-drafter",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_shortcuts={"model": "m", "ctx-size": "c", "threads": "t"},
    )

    redis: str | None = Field(None, description="the leads' Redis: redis://, rediss:// or unix:// URL")
    model: Path = Field(BUNDLED_MODEL, description="the GGUF file of the draft model")
    pool: str = Field("default", description="leads and drafters of one pool meet")
    name: str | None = Field(None, description="this drafter's name (default: from the host)")
    threads: int = Field(1, ge=1, description="CPU threads of the model")
    ctx_size: int = Field(
        0, ge=0, description="KV cells shared by all sessions; 0: the model's context, at most 8192, times 4"
    )
    sequences: int = Field(16, ge=1, le=256, description="conversations kept at once, idle ones included")
    gpu_layers: int = Field(-1, ge=-1, description="layers on the GPU; -1: all, where there is one")
    path_min: float = Field(0.05, ge=0, le=1, description="stop where the guessed path is less likely")
    end_with_parent: CliSuppress[bool] = Field(False, description="end when standard input is closed")

    @property
    def redis_url(self) -> str | None:
        """The URL of Redis, which a drafter may have in common with a lead's environment."""
        return self.redis or os.environ.get("DUO_REDIS")
