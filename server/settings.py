"""What a person can set: one definition for each flag, its environment variable and its default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, CliToggleFlag, SettingsConfigDict

from server.errors import StartupError
from server.llama import cores
from server.llama.model_settings import ModelSettings, Texts, each, parsed, separated
from server.llama.options import TensorPlace, Weights, tensor_places
from server.llama.parts import model_name
from server.sampling.params import SamplingParams

BUNDLED_MODEL = Path(__file__).parent / "models" / "duo-tiny-q8_0.gguf"
BUNDLED_DRAFT = Path(__file__).parent.parent / "drafters" / "models" / "duo-tiny-draft-q8_0.gguf"


def _is_template(text: str | None) -> str | None:
    if text is not None and text != "chatml" and "{{" not in text and "{%" not in text:
        raise ValueError(
            "this is no Jinja template: give its text here, or its file with --chat-template-file"
        )
    return text


def _has_a_key(value: Any) -> Any:
    """Refuses a list without keys, from an empty variable for example. Only the default may be empty."""
    if value != () and not separated(value):
        raise ValueError("there is no key in it, and everybody would be let in")
    return value


class DoorSettings(BaseSettings):
    """The flags about clients: keys, web origins, TLS, limits of requests and replies, the log.

    door_of() in server/lead/listening.py makes a Door of them.
    """

    api_key: Annotated[Texts, BeforeValidator(_has_a_key)] = Field(
        (),
        repr=False,
        description="API keys, one of which every request must bring; several with commas between, or the "
        "flag several times (default: none is needed)",
    )
    api_key_file: Path | None = Field(
        None, description="a file with API keys, one to a line; lines that begin with # are comments"
    )
    no_api_key: CliToggleFlag[bool] = Field(
        False,
        description="let everybody in, wherever --host listens (default: beyond this machine a key is "
        "wanted; without any, one is made for this start and told)",
    )
    cors_origins: Texts = Field(
        (),
        description="web origins whose pages may use the API, with commas between; *: all, localhost: those "
        "of this machine (default: the server's own page only)",
    )
    ssl_key_file: Path | None = Field(None, description="serve TLS: a PEM file with the private key")
    ssl_cert_file: Path | None = Field(None, description="serve TLS: a PEM file with its certificate")
    max_body: int = Field(32, ge=1, le=4096, description="MiB of a request's body, at most")
    timeout: float = Field(600, gt=0, description="seconds within which a request's body must have arrived")
    write_timeout: float = Field(60, gt=0, description="seconds that a reply may wait for its client to read")
    request_timeout: float = Field(0, ge=0, description="seconds that a reply may take, at most; 0: any")
    max_tokens: int = Field(
        0, ge=0, description="tokens of a reply, at most: who asks for more gets these; 0: any number"
    )
    grace: float = Field(5, ge=0, description="seconds that running replies have when the server shall end")
    log_format: Literal["text", "json"] = Field("text", description="json: each line of the log is an object")
    log_requests: bool = Field(False, description="log a line for each request, without what was said")
    log_prompts: bool = Field(False, description="also log the bodies of requests")

    def keys(self) -> tuple[str, ...]:
        """Return the API keys of the flag and of the file.

        Raises:
            StartupError: the file has none, or cannot be read.
        """
        if self.no_api_key and (self.api_key or self.api_key_file):
            raise StartupError("--no-api-key lets everybody in: leave it out, or leave out the keys")
        if self.api_key_file is None:
            return self.api_key
        try:
            lines = self.api_key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"cannot read the API keys in {self.api_key_file}: {error}") from error
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise StartupError(f"there is no API key in {self.api_key_file}: give one to a line")
        return (*self.api_key, *found)


class LeadSettings(ModelSettings, DoorSettings):
    """Serve a model over the OpenAI API.

    Flags are named as llama-server names them where they mean the same; each can also be given in the
    environment as DUO_NAME.
    """

    model_config = SettingsConfigDict(
        env_prefix="DUO_",
        frozen=True,
        cli_prog_name="duo serve",
        cli_shortcuts={
            "model": "m",
            "ctx-size": "c",
            "threads": "t",
            "alias": "a",
            "batch-size": "b",
            "predict": "n",
            "seed": "s",
        },
    )

    model: Path = Field(
        BUNDLED_MODEL,
        description="the GGUF file of the target model; of several parts, any (default: "
        "SmolLM2-135M-Instruct, fetched once; where it cannot be had, the tiny bundled model)",
    )
    alias: Texts = Field(
        (),
        description="the model's names in the API, with commas between, *: any; it tells the first (default: "
        "the file's)",
    )
    chat_template: Annotated[str | None, AfterValidator(_is_template)] = Field(
        None, description="the text of a Jinja template instead of the model's, or chatml"
    )
    chat_template_file: Path | None = Field(None, description="a file with a Jinja chat template")
    note: str | None = Field(None, description="a remark about the model that the chat page shows")
    host: str = Field("127.0.0.1", description="the address to listen on")
    port: int = Field(5555, ge=0, le=65535, description="the port to listen on; 0 takes a free one")
    threads: int = Field(0, ge=0, description="CPU threads of the model; 0 chooses")
    ctx_size: int = Field(
        0,
        ge=0,
        description="KV cells shared by all conversations; 0: the model's context, at most 8192, per slot",
    )
    kv_unified: bool = Field(
        True,
        description="one KV cache for all conversations; off: one for each, of --ctx-size / --parallel "
        "cells, so that its logits do not depend on its place among others",
    )
    parallel: int = Field(4, ge=1, le=64, description="replies generated at once")
    cache_ram: int | None = Field(
        None,
        ge=0,
        description="MiB of host memory for conversations that the KV cache lacks room for; 0: none "
        "(default: a quarter of what is free once the model is loaded)",
    )
    cache_dir: Path | None = Field(
        None,
        description="a directory where conversations are kept beyond that, and over restarts; leads may "
        "share one (default: none)",
    )
    cache_disk: int = Field(8192, ge=1, description="MiB that --cache-dir may take")
    redis: str | None = Field(
        None,
        description="where drafters connect: redis://, rediss://, redis+sentinel:// or unix:// URL "
        "(default: no drafters)",
    )
    pool: str = Field("default", description="leads and drafters of one pool meet")
    draft_mode: Literal["auto", "async", "sync"] = Field(
        "auto",
        description="async: drafters of their own draft while this model decodes; sync: the draft model "
        "drafts in this process, between steps, for machines with one device; auto: what suits the machine",
    )
    draft_model: Path | None = Field(
        None,
        description="the GGUF file of the draft model (duo up: bundled), or of this model's EAGLE-3 head, "
        "which drafts in this process whatever --draft-mode says, in place of a prediction block",
    )
    hf_repo_draft: str | None = Field(
        None, description="USER/MODEL[:QUANT] on Hugging Face instead of --draft-model"
    )
    draft_threads: int = Field(0, ge=0, description="CPU threads of each draft model; 0 chooses")
    gpu_layers_draft: int | None = Field(
        None, ge=-1, description="layers of the draft model on the GPU (default: --gpu-layers)"
    )
    cpu_moe_draft: bool = Field(False, description="--cpu-moe of the draft model")
    n_cpu_moe_draft: int = Field(0, ge=0, description="--n-cpu-moe of the draft model")
    override_tensor_draft: Annotated[Texts, each(TensorPlace.parse)] = Field(
        (), description="--override-tensor of the draft model"
    )
    embeddings: bool = Field(
        True,
        description="answer /v1/embeddings, with this model unless another is given; takes memory from the "
        "first request on",
    )
    embedding_model: Path | None = Field(None, description="the GGUF file of a model for embeddings")
    pooling: Literal["mean", "cls", "last"] | None = Field(
        None, description="how an embedding is made of those of its tokens (default: the model's, else mean)"
    )
    reranking: bool = Field(
        False, description="answer /v1/rerank with this model (on if its file says that it ranks)"
    )
    rerank_model: Path | None = Field(None, description="the GGUF file of a model for /v1/rerank")
    mtp: Literal["auto", "off"] = Field(
        "auto",
        description="auto: guess with the prediction block in the model's file, if it has one and no draft "
        "model or head was asked for in this process",
    )
    mtp_max: int = Field(0, ge=0, le=64, description="most guesses of block or head per step; 0: what pays")
    draft_max: int = Field(64, ge=0, le=64, description="most drafted tokens verified per step; 0: none")
    leaves: int = Field(3, ge=1, le=16, description="most leaves of a tree of drafted tokens; 1: chains only")
    lookup: bool = Field(True, description="also draft from what was said before")
    verify: Literal["exact", "rejection"] = Field(
        "exact",
        description="exact: the text does not depend on drafts; rejection: the classical rule, which keeps "
        "the distribution only; for --draft-mode sync",
    )
    gate: bool = Field(True, description="verify only drafts that pay; off: as many as there are")
    exactness: Literal["default", "width-stable"] = Field(
        "default", description="width-stable: bits do not depend on drafts, one reply at a time"
    )
    stable_width: int = Field(8, ge=2, le=64, description="rows of a step under width-stable")
    temp: float = Field(0.8, ge=0, description="default temperature")
    top_k: int = Field(40, ge=0, description="default top_k; 0: off")
    top_p: float = Field(0.95, gt=0, le=1, description="default top_p; 1: off")
    min_p: float = Field(0.05, ge=0, le=1, description="default min_p; 0: off")
    seed: int = Field(-1, ge=-1, lt=1 << 64, description="default seed; -1: another one for each request")
    context_shift: bool = Field(
        False, description="default context_shift: replies go on when the context is full"
    )
    reasoning: Literal["on", "off", "auto"] = Field(
        "auto", description="default of enable_thinking, for templates that know it; off: no thoughts at all"
    )
    reasoning_format: Literal["none", "auto", "deepseek"] = Field(
        "auto", description="default reasoning_format; none: thoughts are part of the content"
    )
    predict: int = Field(-1, ge=-1, description="default max_tokens; -1: until the context ends")
    reasoning_budget: int = Field(
        -1, ge=-1, description="default reasoning_budget, tokens of thoughts; 0: none, -1: any number"
    )
    smooth: bool = Field(
        True, description="spread the tokens of a step over a stream; off: send them at once"
    )
    verbose: bool = Field(False, description="default verbose of chat completions, for looking into them")
    slots: bool = Field(True, description="answer GET /slots")
    metrics: bool = Field(True, description="answer /metrics")
    ui: bool = Field(True, description="serve the chat page")
    max_queued: int = Field(
        64,
        ge=1,
        description="requests held, running ones included, before new ones are answered 429; with several "
        "API keys a key may hold as many as are free, so that others get in",
    )
    watchdog: float = Field(
        600,
        ge=0,
        description="seconds without a finished step while there is work, before the server ends with status "
        "1; a step has at most --batch-size tokens of prompts; 0: never",
    )
    profile: Path | None = Field(
        None, description="write a profile of the engine's thread to this file at the end, for pstats"
    )
    print: Literal["none", "accepted", "all"] = Field(
        "none",
        description="show replies here: accepted drafts highlighted; all: rejected ones struck out too",
    )

    @property
    def sampling(self) -> SamplingParams:
        """The defaults of requests."""
        return SamplingParams(self.temp, self.top_k, self.top_p, self.min_p)

    @property
    def weights(self) -> Weights:
        return replace(super().weights, mtp=self.mtp == "auto" and self.draft_max > 0)

    @property
    def draft_weights(self) -> Weights:
        """Return how the draft model is loaded: with its own layers on the GPU and places of tensors.

        None of it goes to lenders, which are slow to ask for a draft.
        """
        n_gpu_layers = self.gpu_layers if self.gpu_layers_draft is None else self.gpu_layers_draft
        texts, cpu_moe, n_cpu_moe = self.override_tensor_draft, self.cpu_moe_draft, self.n_cpu_moe_draft
        places = tensor_places(texts, cpu_moe=cpu_moe, n_cpu_moe=n_cpu_moe)
        own = replace(self.weights, n_gpu_layers=n_gpu_layers, places=places)
        return replace(own, rpc=(), mtp=False, overrides=(), adapters=())

    @property
    def names(self) -> tuple[str, ...]:
        """The model's names in the API; replies carry the first."""
        named = self.alias and self.alias[0] != "*"
        return self.alias if named else (model_name(self.model), *self.alias)

    @property
    def name(self) -> str:
        return self.names[0]


class UpSettings(LeadSettings):
    """Run everything on this machine: an embedded Redis, a lead and a drafter.

    Takes the flags of duo serve and a few more.
    """

    model_config = SettingsConfigDict(cli_prog_name="duo up")

    drafters: int = Field(1, ge=0, le=16, description="drafter processes to start")
    draft_devices: str | None = Field(
        None, description="CUDA_VISIBLE_DEVICES of the drafters, such as 1 (default: the lead's)"
    )
    cpu_mask_draft: Annotated[str, parsed(cores.of_mask)] = Field(
        "", description="--cpu-mask of the drafters (default: the lead's)"
    )
    cpu_range_draft: Annotated[str, parsed(cores.of_range)] = Field(
        "", description="--cpu-range of the drafters (default: the lead's)"
    )
    redis_listen: str | None = Field(
        None,
        description="HOST or HOST:PORT where drafters on other machines reach the embedded Redis, 0.0.0.0 by "
        "IPv4, [::] by IPv6 and IPv4; the command with the password is told once (default: this machine "
        "only)",
    )

    @property
    def draft_cores(self) -> frozenset[int]:
        """Where drafters run; empty for the lead's."""
        return cores.of_mask(self.cpu_mask_draft) | cores.of_range(self.cpu_range_draft)
