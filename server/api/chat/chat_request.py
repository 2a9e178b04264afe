"""Body of a chat completion request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from server.api.body import Body, Neutral, OtherPart, RefusalPart, TextPart, said_or_refused
from server.api.generation_fields import UNSUPPORTED, GenerationFields, Most, TopLogprobs
from server.api.structured import wanted_form
from server.api.tools import ToolFields, calling
from server.api.tools import incoherent as incoherent_tools
from server.api.unseen import Senses


def arguments_text(arguments: Any) -> Any:
    """Return a call's arguments as JSON text; some clients send an object."""
    try:
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


_ANY_JSON = ["string", "object", "array", "number", "boolean"]


class FunctionCall(Body):
    name: str
    arguments: Annotated[str, BeforeValidator(arguments_text), WithJsonSchema({"type": _ANY_JSON})] = "{}"
    """JSON text, or the JSON value itself."""


class CallInMessage(Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall

    @model_validator(mode="before")
    @classmethod
    def _of_custom_tools(cls, data: Any) -> Any:
        """Convert a call of a custom tool to a call of the function that represents the tool."""
        given = cast(dict[str, Any], data) if isinstance(data, dict) else {}
        custom = given.get("custom")
        if not isinstance(custom, dict):
            return cast(Any, data)
        custom = cast(dict[str, Any], custom)
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input") or ""}}
        return {**given, "type": "function", "function": function}


class TextOfResponse(Body):
    """A text as the Responses API writes it."""

    type: Literal["input_text", "output_text"]
    text: str


def _kind_of_part(part: Any) -> str:
    """Return the tag by which pydantic chooses a part's class, so that errors only concern this class."""
    kind = cast(dict[str, Any], part).get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text"):
        return "of a response"
    return "other" if isinstance(kind, str) and kind not in ("text", "refusal") else said_or_refused(part)


AnyPart: TypeAlias = TextPart | RefusalPart | TextOfResponse | OtherPart
Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("said")]
    | Annotated[RefusalPart, Tag("refused")]
    | Annotated[TextOfResponse, Tag("of a response")]
    | Annotated[OtherPart, Tag("other")],
    Discriminator(_kind_of_part),
]


def _own_text(_: int, part: AnyPart) -> str:
    return part.text


class ChatMessage(Body):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    """A text, parts, or null.

    Parts that the model cannot read, such as pictures without --mmproj, are replaced by a text, except in the
    user's last message, where they are refused.
    """
    name: str | None = None
    tool_calls: Annotated[list[CallInMessage], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """The thoughts of an earlier reply.

    `reasoning`, `reasoning_details`, `thinking_blocks` and parts of type `thinking` are read as thoughts too.
    """

    @model_validator(mode="before")
    @classmethod
    def _calls_and_thoughts_have_many_names(cls, data: Any) -> Any:
        """Convert `function_call` to a tool call, and an assistant's thoughts to reasoning_content.

        The first field of _NAMES_OF_THOUGHTS that has a text counts.
        """
        if not isinstance(data, dict):
            return data
        given = _with_calls(cast(dict[str, Any], data))
        content = given.get("content")
        if isinstance(content, list) and any(map(_is_thought, cast(list[Any], content))):
            parts = cast(list[Any], content)
            given = {**given, "content": [part for part in parts if not _is_thought(part)]}
            given.setdefault("thinking_blocks", list(filter(_is_thought, parts)))
        said = given.get("reasoning_content")
        if given.get("role") != "assistant" or (said and isinstance(said, str)):
            return given
        found = next(filter(None, (_text_of_thoughts(given.get(name)) for name in _NAMES_OF_THOUGHTS)), None)
        return {**given, "reasoning_content": found}

    def for_template(self, text_of: Callable[[int, AnyPart], str] = _own_text) -> dict[str, Any]:
        """Return the message for the chat template: without empty fields, and with all parts as texts.

        Args:
            text_of: Given a part's index and the part, returns the text that the model reads.
        """
        given = {name: value for name in ChatMessage.model_fields if (value := getattr(self, name))}
        if isinstance(self.content, list):
            texts = [text_of(i, part) for i, part in enumerate(self.content)]
            given["content"] = [{"type": "text", "text": text} for text in texts]
        if self.tool_calls:
            given["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.role == "function":
            given["role"] = "tool"
        return {"content": "", **given}

    def unread_part(self, senses: Senses) -> tuple[int, str] | None:
        """Return index and type of the first part that a model with these senses cannot read, else None."""
        parts = self.content if isinstance(self.content, list) else ()
        others = ((i, part) for i, part in enumerate(parts) if isinstance(part, OtherPart))
        return next(((i, part.type) for i, part in others if not senses.reads(part.type)), None)


_NAMES_OF_THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
"""Fields with thoughts, in order, of: DeepSeek and llama-server; vLLM and OpenRouter; OpenRouter; LiteLLM."""
_TEXTS_OF_THOUGHTS = ("thinking", "text", "summary", "content")


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its `function_call` (OpenAI's former field) converted to a tool call."""
    called = message.get("function_call")
    if not isinstance(called, dict) or message.get("tool_calls"):
        return message
    name = cast(dict[str, Any], called).get("name")
    return {**message, "tool_calls": [{"id": f"call_{name}", "type": "function", "function": called}]}


def _is_thought(part: Any) -> bool:
    kinds = ("thinking", "redacted_thinking", "reasoning")
    return isinstance(part, dict) and cast(dict[str, Any], part).get("type") in kinds


def _text_of_thoughts(given: Any) -> str:
    """Return the text of thoughts, given as a text, list or object; encrypted thoughts have no text."""
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        return "".join(map(_text_of_thoughts, cast(list[Any], given)))
    if isinstance(given, dict):
        return next(
            filter(
                None,
                (_text_of_thoughts(cast(dict[str, Any], given).get(name)) for name in _TEXTS_OF_THOUGHTS),
            ),
            "",
        )
    return ""


class PromptCacheOptions(Body):
    """OpenAI's cache options. Prompts are always cached, and kept while there is room."""

    prewarm: bool = False
    """Evaluate the prompt and generate nothing."""


Budget: TypeAlias = Annotated[int, Field(ge=-1)]


class ChatRequest(GenerationFields, ToolFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    """If the last message is the assistant's, the reply continues it."""
    max_completion_tokens: Most | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    """Needs logprobs."""
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None
    """Return thoughts as reasoning_content (auto, deepseek), or in the content with their markers (none).

    By default --reasoning-format (auto). Only affects models whose chat template supports thoughts.
    """
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """Passed to the chat template, which may ignore it; none disables thinking."""
    verbosity: str | None = None
    """Passed to the chat template, which may ignore it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Passed to the chat template, which may ignore them.

    By default enable_thinking is true, and date_string is today's.
    """
    add_generation_prompt: bool | None = None
    """false omits the beginning of a reply from the prompt."""
    continue_final_message: bool | None = None
    """false: the reply does not continue a last message of the assistant.

    true requires a last message of the assistant, and contradicts add_generation_prompt true.
    """
    verbose: bool | None = None
    """Add the first reply in llama-server's own form, as `__verbose`. By default --verbose."""
    reasoning_budget: Budget | None = None
    """Maximum tokens of thoughts; then they are closed and the answer begins; -1: no limit.

    reasoning_budget_tokens, thinking_budget_tokens and max_thinking_tokens are other names. If several are
    given, the first in this order counts.
    """
    reasoning_budget_tokens: Budget | None = None
    thinking_budget_tokens: Budget | None = None
    max_thinking_tokens: Budget | None = None
    thinking_token_budget: Budget | None = None
    """vLLM's name of `reasoning_budget`."""
    generate: bool = True
    """false: evaluate the prompt, but generate no reply."""
    prompt_cache_options: PromptCacheOptions = Field(default_factory=PromptCacheOptions)
    service_tier: str | None = None
    """Copied to the reply; there is only one tier."""

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "modalities": (["text"],),
        "moderation": (),
        "web_search_options": (),
        "echo": (False,),
        "add_special_tokens": (False,),
        "chat_template": (),
        "documents": ([],),
    }

    @property
    def continues(self) -> bool:
        return any(message.role == "assistant" for message in self.messages)

    @property
    def template_variables(self) -> dict[str, Any]:
        """Return the variables for the chat template; effort "none" becomes enable_thinking false."""
        effort: dict[str, Any] = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        thinking = {"enable_thinking": False} if self.reasoning_effort == "none" else effort
        verbosity = {"verbosity": self.verbosity} if self.verbosity else {}
        return {**thinking, **verbosity, **(self.chat_template_kwargs or {})}

    @property
    def thinking_budget(self) -> int | None:
        """Return the maximum tokens of thoughts; -1: no limit; None: the server's default."""
        given = (
            self.reasoning_budget,
            self.reasoning_budget_tokens,
            self.thinking_budget_tokens,
            self.max_thinking_tokens,
            self.thinking_token_budget,
        )
        return next((one for one in given if one is not None), None)

    @property
    def n_logprobs(self) -> int | None:
        if self.logprobs:
            return max(self.top_logprobs or 0, self.n_probs or 0)
        return self.n_probs or None

    @property
    def reports_reply(self) -> bool:
        return self.generate and not self.prompt_cache_options.prewarm

    @property
    def max_new_tokens(self) -> int | None:
        if not self.reports_reply:
            return 1
        given = self.max_completion_tokens
        return super().max_new_tokens if given is None else given if given > 0 else None

    def contradiction(self) -> tuple[str, str] | None:
        if self.top_logprobs and not self.logprobs:
            return "top_logprobs", "logprobs must be true"
        if self.continue_final_message and self.add_generation_prompt:
            return (
                "continue_final_message",
                "a reply cannot both continue a message and begin one: not with add_generation_prompt",
            )
        if self.continue_final_message and self.messages[-1].role != "assistant":
            return "continue_final_message", "the last message is not the assistant's"
        if (found := incoherent_tools(self)) is not None:
            return found
        calls, form = calling(self), wanted_form(self)
        if calls and calls.callable and not calls.required and form and form.grammar:
            return form.place, "not beside tools that may be called: use response_format, or tool_choice none"
        return super().contradiction()

    def first_unreadable(self, senses: Senses) -> tuple[str, str] | None:
        """Find a part that the model cannot read in the last message; return its field and the reason.

        System messages at the end are skipped. Return None if the model can read all parts, or if the message
        is not the user's. Also return None after a tool's result, because the parts may belong to it.

        Args:
            senses: What the model reads beside text.
        """
        last = len(self.messages) - 1
        while last > 0 and self.messages[last].role in ("system", "developer"):
            last -= 1
        shown_by_tool = last > 0 and self.messages[last - 1].role in ("tool", "function")
        asks = self.messages[last].role == "user" and not shown_by_tool
        found = self.messages[last].unread_part(senses) if asks else None
        if found is None:
            return None
        part, kind = found
        return (
            f"messages.{last}.content.{part}.type",
            f"`{kind}` is not supported: this model reads {senses.words} only",
        )
