"""What the server tells of itself: health, models, slots, errors."""

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
    """Of a prompt that is too long, at least."""
    n_ctx: NotRequired[int]
    """Of the context, beside n_prompt_tokens."""


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
    """Of requests that do not say."""
    stable_width: int
    """Rows of a step under width-stable."""
    probe: dict[str, Any] | None
    """What duo probe found about this model on this machine; null if it was not run."""


class HealthGate(TypedDict):
    """The figures that drafts are weighed with."""

    tokens_per_second: float
    """Of late, all replies together."""
    step_ms: dict[str, float]
    """Milliseconds of a decode by its rows, as far as measured."""
    width: int
    """Rows that the latest step was padded to, 0: none."""
    steady_ms: dict[str, float]
    """Milliseconds of a decode by its rows among equal ones, of widths that steps may be padded to; empty
    where a change of width costs nothing."""


class HealthDrafter(TypedDict):
    id: str
    guess_ms: float
    """Milliseconds of a guess by its latest message, 0 if unknown."""
    name: str
    """What people call it."""
    model: str
    state: Literal["accepted", "refused"]
    reason: str | None
    """Why it was refused."""
    rests: str | None
    """Why it rests, null if it does not."""
    counts: dict[str, int]


class HealthShape(TypedDict):
    status: Literal["ok", "loading", "draining", "stuck"]
    reason: NotRequired[str]
    """Why it is stuck."""
    slots: HealthSlots
    queued: int
    engine: HealthEngine
    draft_mode: Literal["async", "sync"]
    """Sync: the draft model drafts in this process, between steps."""
    exactness: HealthExactness
    gate: HealthGate
    """The figures that drafts are weighed with."""
    drafters: list[HealthDrafter]


class ModelMetaDraft(TypedDict):
    mode: Literal["async", "sync"]
    drafters: Natural
    """Connected ones that fit."""


class ModelMeta(TypedDict):
    n_ctx: int
    """Most tokens of a conversation."""
    n_vocab: int
    n_params: int
    size: int
    """Bytes of the weights."""
    quantization: str | None
    """As llama.cpp names it, such as Q4_K_M."""
    description: str
    note: str | None
    aliases: list[str]
    """Further names by which requests may call it."""
    draft: ModelMetaDraft | None
    """Who drafts at this moment; null of a model that embeds."""


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["duo"]
    meta: ModelMeta


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]


class AnthropicModel(TypedDict):
    type: Literal["model"]
    id: str
    display_name: str
    """The id."""
    created_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    lifecycle: Literal["active"]
    max_input_tokens: int
    """Most tokens of a conversation."""
    max_tokens: int
    """The same."""


class AnthropicModelList(TypedDict):
    data: Annotated[list[AnthropicModel], Field(min_length=1)]
    has_more: Literal[False]
    first_id: str
    last_id: str


class DefaultSettings(TypedDict):
    n_ctx: int
    """Most tokens of a conversation."""
    params: dict[str, float | list[str]]
    """By the names that requests have for them; max_tokens -1 is until the context ends, seed -1 a random
    one."""


class Props(TypedDict):
    default_generation_settings: DefaultSettings
    total_slots: Positive
    """Replies generated at once."""
    model_alias: str
    """The model's id."""
    model_path: str
    """The name of its file, without the directory."""
    modalities: dict[str, bool]
    endpoint_slots: bool
    endpoint_props: bool
    """Properties cannot be set."""
    endpoint_metrics: bool
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str


class AdapterShape(TypedDict):
    id: Natural
    path: str
    """The name of its file."""
    scale: float


Adapters = TypeAliasType("Adapters", list[AdapterShape])


class SlotNextToken(TypedDict):
    has_new_line: bool
    has_next_token: bool
    n_remain: Annotated[int, Field(ge=-1)]
    """-1: until the context ends."""
    n_decoded: Natural


class ListedSlot(TypedDict):
    """A slot of --parallel. Fields about a reply are there once the slot has had one."""

    id: Natural
    n_ctx: int
    """Most tokens of one conversation."""
    is_processing: bool
    speculative: bool
    """Whether drafts may be verified in it."""
    n_past: Natural
    """Tokens in the KV cache."""
    id_task: NotRequired[int]
    """The latest reply."""
    n_prompt_tokens: NotRequired[Natural]
    """As n_past: llama-server's name."""
    n_prompt_tokens_processed: NotRequired[Natural]
    """Tokens of its prompt that were evaluated."""
    n_prompt_tokens_cache: NotRequired[Natural]
    """Tokens of its prompt that were cached."""
    params: NotRequired[dict[str, Any]]
    """What it is generated with."""
    next_token: NotRequired[Annotated[list[SlotNextToken], Field(min_length=1, max_length=1)]]


SlotsShape = TypeAliasType("SlotsShape", list[ListedSlot])


class SlotSavedTimings(TypedDict):
    save_ms: float


class SlotSaved(TypedDict):
    id_slot: int
    filename: str
    n_saved: int
    """Tokens."""
    n_written: int
    """Bytes."""
    timings: SlotSavedTimings


class SlotRestoredTimings(TypedDict):
    restore_ms: float


class SlotRestored(TypedDict):
    id_slot: int
    filename: str
    n_restored: int
    """Tokens."""
    n_read: int
    """Bytes."""
    timings: SlotRestoredTimings


class SlotErased(TypedDict):
    id_slot: int
    n_erased: int
    """Tokens."""
