"""Answers about the server: health, models, slots, errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from server.api.contract.quantities import Natural, Positive


class ErrorDetails(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: NotRequired[int]
    """Number of tokens of a prompt that is too long, or a lower bound."""
    n_ctx: NotRequired[int]
    """Tokens that fit the context; only beside n_prompt_tokens."""


class Error(TypedDict):
    error: ErrorDetails


class Ready(TypedDict):
    status: Literal["ok", "loading", "draining", "stuck"]


class HealthSlots(TypedDict):
    total: int
    busy: int


class HealthEngine(TypedDict):
    step_python_us: float
    """Median microseconds outside llama_decode in recent one-session steps."""


class HealthExactness(TypedDict):
    tier: Literal["default", "width-stable"]
    """The default tier of requests."""
    stable_width: int
    """Rows of a step under width-stable."""
    probe: dict[str, Any] | None
    """Result of duo probe for this model on this machine; null if it was not run."""


class HealthGate(TypedDict):
    """The measurements that decide whether drafts pay."""

    tokens_per_second: float
    """Recent rate of all replies together."""
    step_ms: dict[str, float]
    """Measured milliseconds of a decode, by its number of rows."""
    width: int
    """Rows that the latest step was padded to; 0: it was not padded."""
    steady_ms: dict[str, float]
    """Milliseconds of a decode whose previous decodes had the same number of rows, by that number. Listed are
    the numbers to which steps may be padded. Empty if a change of the number costs nothing."""


class HealthDrafter(TypedDict):
    id: str
    guess_ms: float
    """Milliseconds per guess, by its latest message; 0: unknown."""
    name: str
    """Name shown to people."""
    kind: str
    """Source of its guesses: model, head, engine, browser, lookup or replay."""
    model: str
    state: Literal["accepted", "refused"]
    reason: str | None
    """Why the drafter was refused; null if it was not."""
    rests: str | None
    """Why the drafter is paused; null if it is not."""
    counts: dict[str, int]


class HealthShape(TypedDict):
    status: Literal["ok", "loading", "draining", "stuck"]
    reason: NotRequired[str]
    """Why the server is stuck."""
    pool: NotRequired[list[str]]
    """Leads that continue each other's stored replies, including this lead."""
    slots: HealthSlots
    queued: int
    engine: HealthEngine
    draft_mode: Literal["async", "sync"]
    """sync: a draft model drafts in this process, between steps."""
    exactness: HealthExactness
    gate: HealthGate
    """The measurements that decide whether drafts pay."""
    drafters: list[HealthDrafter]


class ModelMetaDraft(TypedDict):
    mode: Literal["async", "sync"]
    drafters: Natural
    """Number of connected drafters that are accepted."""


class ModelMeta(TypedDict):
    n_ctx: int
    """Maximum tokens of a conversation."""
    n_vocab: int
    n_params: int
    size: int
    """Bytes of the weights."""
    quantization: str | None
    """llama.cpp's name of the quantization, such as Q4_K_M."""
    description: str
    note: str | None
    aliases: list[str]
    """Other names that requests may use for the model."""
    draft: ModelMetaDraft | None
    """The present drafting; null for a model that embeds."""


class ModelArchitecture(TypedDict):
    input_modalities: list[Literal["text", "image", "audio"]]
    """The types of content in prompts: beside text, what --mmproj reads."""
    output_modalities: list[Literal["text"]]


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["duo"]
    architecture: ModelArchitecture
    meta: ModelMeta


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]


class AnthropicModel(TypedDict):
    type: Literal["model"]
    id: str
    display_name: str
    """The model's id."""
    created_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    lifecycle: Literal["active"]
    max_input_tokens: int
    """Maximum tokens of a conversation."""
    max_tokens: int
    """Maximum tokens of a reply; equal to max_input_tokens."""


class AnthropicModelList(TypedDict):
    data: Annotated[list[AnthropicModel], Field(min_length=1)]
    has_more: Literal[False]
    first_id: str
    last_id: str


class DefaultSettings(TypedDict):
    n_ctx: int
    """Maximum tokens of a conversation."""
    params: dict[str, float | list[str]]
    """Defaults by request field. max_tokens -1: until the context is full; seed -1: random."""


class Props(TypedDict):
    default_generation_settings: DefaultSettings
    total_slots: Positive
    """Maximum replies that are generated at once."""
    model_alias: str
    """The model's id."""
    model_path: str
    """The name of the model's file, without the directory."""
    modalities: dict[str, bool]
    endpoint_slots: bool
    endpoint_props: bool
    """Always false: properties cannot be set."""
    endpoint_metrics: bool
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str


class AdapterShape(TypedDict):
    id: Natural
    path: str
    """The name of the adapter's file."""
    scale: float


Adapters = TypeAliasType("Adapters", list[AdapterShape])


class SlotNextToken(TypedDict):
    has_new_line: bool
    has_next_token: bool
    n_remain: Annotated[int, Field(ge=-1)]
    """Number of tokens that the reply may still have; -1: until the context is full."""
    n_decoded: Natural


class ListedSlot(TypedDict):
    """One of the slots of --parallel. Fields about a reply are absent until the slot has had a reply."""

    id: Natural
    n_ctx: int
    """Maximum tokens of a conversation."""
    is_processing: bool
    speculative: bool
    """true: drafts may be verified in this slot."""
    n_past: Natural
    """Tokens of the slot in the KV cache."""
    id_task: NotRequired[int]
    """Number of the slot's latest reply."""
    n_prompt_tokens: NotRequired[Natural]
    """llama-server's name of n_past."""
    n_prompt_tokens_processed: NotRequired[Natural]
    """Tokens of the reply's prompt that were evaluated."""
    n_prompt_tokens_cache: NotRequired[Natural]
    """Tokens of the reply's prompt that were cached."""
    params: NotRequired[dict[str, Any]]
    """Settings of the reply."""
    next_token: NotRequired[Annotated[list[SlotNextToken], Field(min_length=1, max_length=1)]]


SlotsShape = TypeAliasType("SlotsShape", list[ListedSlot])


class SlotSavedTimings(TypedDict):
    save_ms: float


class SlotSaved(TypedDict):
    id_slot: int
    filename: str
    n_saved: int
    """Number of tokens."""
    n_written: int
    """Number of bytes."""
    timings: SlotSavedTimings


class SlotRestoredTimings(TypedDict):
    restore_ms: float


class SlotRestored(TypedDict):
    id_slot: int
    filename: str
    n_restored: int
    """Number of tokens."""
    n_read: int
    """Number of bytes."""
    timings: SlotRestoredTimings


class SlotErased(TypedDict):
    id_slot: int
    n_erased: int
    """Number of tokens."""
