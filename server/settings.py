"""The lead's settings: one definition for each flag, its environment variable and its default."""

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
    """Return a list of API keys unchanged. Raises ValueError if it is empty and not the default.

    An empty environment variable, for example, gives an empty list.
    """
    if value != () and not separated(value):
        raise ValueError("there is no key in it, and everybody would be let in")
    return value


class ClientPolicySettings(BaseSettings):
    """The flags about clients: keys, web origins, TLS, limits of requests and replies, the log.

    client_policy_of() in server/lead/listening.py makes a ClientPolicy of them.
    """

    api_key: Annotated[Texts, BeforeValidator(_has_a_key)] = Field(
        (),
        repr=False,
        description="API keys, separated by commas; each request must bring one (default: none needed)",
    )
    api_key_file: Path | None = Field(
        None, description="a file with an API key on each line; # begins a comment"
    )
    no_api_key: CliToggleFlag[bool] = Field(
        False,
        description="let everybody in (default: beyond this machine a key is required, and made if none "
        "is given)",
    )
    cors_origins: Texts = Field(
        (),
        description="web origins whose pages may use the API; *: all, localhost: this machine's (default: "
        "the server's own page)",
    )
    ssl_key_file: Path | None = Field(None, description="serve TLS: a PEM file with the private key")
    ssl_cert_file: Path | None = Field(None, description="serve TLS: a PEM file with its certificate")
    max_body: int = Field(32, ge=1, le=4096, description="maximum size of a request's body")
    timeout: float = Field(600, gt=0, description="maximum time for a request's body to arrive")
    write_timeout: float = Field(60, gt=0, description="maximum time for a client to read its reply")
    request_timeout: float = Field(0, ge=0, description="maximum time for a reply; 0: none")
    max_tokens: int = Field(
        0, ge=0, description="maximum tokens of a reply, whatever a request asks for; 0: none"
    )
    grace: float = Field(5, ge=0, description="time for running replies when the server is asked to end")
    log_format: Literal["text", "json"] = Field("text", description="json: an object on each line")
    log_requests: bool = Field(False, description="log each request, without its text")
    log_prompts: bool = Field(False, description="also log the bodies of requests")

    def keys(self) -> tuple[str, ...]:
        """Return the API keys of the flag and of the file.

        Raises:
            StartupError: the file has no keys, or cannot be read.
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


class LeadSettings(ModelSettings, ClientPolicySettings):
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
        description="the target model's GGUF file, or any part of a split one (default: "
        "SmolLM2-135M-Instruct, fetched once, or else the bundled model)",
    )
    alias: Texts = Field(
        (),
        description="the model's names in the API; *: any; replies carry the first (default: the file's "
        "name)",
    )
    chat_template: Annotated[str | None, AfterValidator(_is_template)] = Field(
        None, description="a Jinja template instead of the model's, or chatml"
    )
    chat_template_file: Path | None = Field(None, description="a file with a Jinja chat template")
    note: str | None = Field(None, description="a remark for the chat page")
    host: str = Field("127.0.0.1", description="the address to listen on")
    port: int = Field(5555, ge=0, le=65535, description="the port to listen on; 0: a free one")
    threads: int = Field(0, ge=0, description="CPU threads of the model; 0: automatic")
    ctx_size: int = Field(
        0,
        ge=0,
        description="KV cells for all conversations; 0: for each slot the model's context, at most 8192",
    )
    kv_unified: bool = Field(
        True,
        description="one KV cache for all conversations; off: --ctx-size / --parallel cells for each, so "
        "that logits do not depend on others' cells",
    )
    parallel: int = Field(4, ge=1, le=64, description="maximum replies generated at once")
    cache_ram: int | None = Field(
        None,
        ge=0,
        description="host memory for conversations that leave the KV cache (default: a quarter of what is "
        "free once the model is loaded)",
    )
    cache_dir: Path | None = Field(
        None,
        description="a directory for those beyond --cache-ram, kept over restarts; leads may share it "
        "(default: none)",
    )
    cache_disk: int = Field(8192, ge=1, description="maximum size of --cache-dir")
    redis: str | None = Field(
        None,
        description="Redis for drafters and stored responses: redis://, rediss://, redis+sentinel:// or "
        "unix:// (default: no drafters)",
    )
    pool: str = Field("default", description="drafters draft for leads of the same pool")
    mmproj: Path | None = Field(
        None,
        description="the model's projector, a GGUF file: read pictures",
    )
    mmproj_auto: bool = Field(True, description="use the projector beside the model in --hf-repo")
    allow_remote_images: bool = Field(
        False, description="fetch pictures from http and https URLs on public addresses"
    )
    draft_mode: Literal["auto", "async", "sync"] = Field(
        "auto",
        description="async: drafter processes draft while this model decodes; sync: a draft model in this "
        "process drafts between steps; auto: by the machine",
    )
    draft_model: Path | None = Field(
        None,
        description="the draft model's GGUF file (duo up: bundled), or an EAGLE-3, DFlash or "
        "DSpark head or a prediction block, which always drafts in this process",
    )
    hf_repo_draft: str | None = Field(
        None, description="USER/MODEL[:QUANT] on Hugging Face instead of --draft-model"
    )
    draft_threads: int = Field(0, ge=0, description="CPU threads of each draft model; 0: automatic")
    gpu_layers_draft: int | None = Field(
        None, ge=-1, description="--gpu-layers of the draft model (default: --gpu-layers)"
    )
    cpu_moe_draft: bool = Field(False, description="--cpu-moe of the draft model")
    n_cpu_moe_draft: int = Field(0, ge=0, description="--n-cpu-moe of the draft model")
    override_tensor_draft: Annotated[Texts, each(TensorPlace.parse)] = Field(
        (), description="--override-tensor of the draft model"
    )
    embeddings: bool = Field(
        True,
        description="answer /v1/embeddings; takes memory from the first request on",
    )
    embedding_model: Path | None = Field(None, description="a GGUF file for embeddings (default: this model)")
    pooling: Literal["mean", "cls", "last"] | None = Field(
        None, description="how tokens become one embedding (default: the model's, else mean)"
    )
    reranking: bool = Field(
        False, description="answer /v1/rerank with this model (default: if its file says that it ranks)"
    )
    rerank_model: Path | None = Field(None, description="a GGUF file for /v1/rerank")
    mtp: Literal["auto", "off"] = Field(
        "auto",
        description="auto: draft with the model's prediction block, or a head beside it in --hf-repo, "
        "unless a draft model or head is given",
    )
    mtp_max: int = Field(
        0, ge=0, le=64, description="maximum guesses of block or head in a step; 0: what pays"
    )
    draft_max: int = Field(64, ge=0, le=64, description="maximum guesses verified in a step; 0: none")
    leaves: int = Field(3, ge=1, le=16, description="maximum leaves of a tree of guesses; 1: chains only")
    lookup: bool = Field(True, description="also draft from earlier text")
    verify: Literal["exact", "rejection"] = Field(
        "exact",
        description="exact: drafts never change the text; rejection: drafts keep only its distribution, "
        "with --draft-mode sync",
    )
    gate: bool = Field(True, description="verify only guesses that pay; off: all")
    exactness: Literal["default", "width-stable"] = Field(
        "default", description="width-stable: no bit depends on drafts; one reply at a time"
    )
    stable_width: int = Field(8, ge=2, le=64, description="rows of a width-stable step")
    temp: float = Field(0.8, ge=0, description="default temperature")
    top_k: int = Field(40, ge=0, description="default top_k; 0: off")
    top_p: float = Field(0.95, gt=0, le=1, description="default top_p; 1: off")
    min_p: float = Field(0.05, ge=0, le=1, description="default min_p; 0: off")
    seed: int = Field(-1, ge=-1, lt=1 << 64, description="default seed; -1: random")
    context_shift: bool = Field(False, description="default context_shift: go on when the context is full")
    reasoning: Literal["on", "off", "auto"] = Field(
        "auto", description="default enable_thinking; off: no thoughts at all"
    )
    reasoning_format: Literal["none", "auto", "deepseek"] = Field(
        "auto", description="default reasoning_format; none: thoughts stay in the content"
    )
    predict: int = Field(-1, ge=-1, description="default max_tokens; -1: until the context ends")
    reasoning_budget: int = Field(
        -1, ge=-1, description="default reasoning_budget in tokens; 0: no thoughts, -1: no limit"
    )
    smooth: bool = Field(True, description="spread a step's tokens over its time; off: send them at once")
    verbose: bool = Field(False, description="default verbose of chat completions")
    slots: bool = Field(True, description="answer GET /slots")
    metrics: bool = Field(True, description="answer /metrics")
    ui: bool = Field(True, description="serve the chat page")
    max_queued: int = Field(
        64,
        ge=1,
        description="maximum requests held, running ones included; more get a 429. With several API keys, "
        "each may hold at most as many as are still free",
    )
    watchdog: float = Field(
        600,
        ge=0,
        description="maximum time of a step (at most --batch-size prompt tokens) before the server ends "
        "with status 1; 0: none",
    )
    profile: Path | None = Field(
        None, description="write the engine thread's profile here at the end, for pstats"
    )
    print: Literal["none", "accepted", "all"] = Field(
        "none",
        description="print replies with accepted guesses highlighted; all: also rejected ones struck out",
    )

    @property
    def sampling(self) -> SamplingParams:
        """Return the sampling defaults of requests."""
        return SamplingParams(self.temp, self.top_k, self.top_p, self.min_p)

    @property
    def weights(self) -> Weights:
        blocks = self.mtp == "auto" and self.draft_max > 0
        return replace(super().weights, mtp=blocks)

    @property
    def draft_weights(self) -> Weights:
        """Return how the draft model is loaded: its number of layers on GPUs, and its tensors' places.

        No layer goes to lenders: drafting over the network would be slow.
        """
        n_gpu_layers = self.gpu_layers if self.gpu_layers_draft is None else self.gpu_layers_draft
        texts, cpu_moe, n_cpu_moe = self.override_tensor_draft, self.cpu_moe_draft, self.n_cpu_moe_draft
        places = tensor_places(texts, cpu_moe=cpu_moe, n_cpu_moe=n_cpu_moe)
        own = replace(self.weights, n_gpu_layers=n_gpu_layers, places=places)
        return replace(own, rpc=(), mtp=False, overrides=(), adapters=())

    @property
    def names(self) -> tuple[str, ...]:
        """Return the model's names in the API; replies carry the first."""
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

    drafters: int = Field(1, ge=0, le=16, description="number of drafter processes")
    draft_devices: str | None = Field(
        None, description="CUDA_VISIBLE_DEVICES of the drafters (default: the lead's)"
    )
    cpu_mask_draft: Annotated[str, parsed(cores.of_mask)] = Field(
        "", description="--cpu-mask of the drafters (default: the lead's)"
    )
    cpu_range_draft: Annotated[str, parsed(cores.of_range)] = Field(
        "", description="--cpu-range of the drafters (default: the lead's)"
    )
    redis_listen: str | None = Field(
        None,
        description="HOST or HOST:PORT where drafters elsewhere reach the embedded Redis, such as 0.0.0.0 "
        "or [::]; prints their command with the password (default: this machine only)",
    )

    @property
    def draft_cores(self) -> frozenset[int]:
        """Return the CPU cores that drafters run on; empty if they use the lead's cores."""
        return cores.of_mask(self.cpu_mask_draft) | cores.of_range(self.cpu_range_draft)
