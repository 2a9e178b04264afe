"""The body of a chat completion request."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from server.api.body import Body, Neutral, RefusalPart, TextPart, said_or_refused
from server.api.generation_fields import UNSUPPORTED, GenerationFields, Most, TopLogprobs
from server.api.structured import forms
from server.api.tools import ToolFields, calling
from server.api.tools import incoherent as incoherent_tools


def _as_text(arguments: Any) -> Any:
    """JSON text of arguments that are given as an object, as llama-server takes them, too."""
    try:
        return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
    except RecursionError:
        raise ValueError("nested too deeply") from None


class FunctionCall(Body):
    name: str
    arguments: Annotated[str, BeforeValidator(_as_text)] = "{}"


class CallInMessage(Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


def _as_part(part: TextPart | RefusalPart) -> TextPart:
    return TextPart(type="text", text=part.text)


Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("said")] | Annotated[RefusalPart, Tag("refused")],
    Discriminator(said_or_refused),
    AfterValidator(_as_part),
]


class ChatMessage(Body):
    """content: a string, parts, or null. reasoning_content: the thoughts of an earlier reply."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallInMessage], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The message without fields that say nothing."""
        given = {name: value for name, value in self.model_dump().items() if value}
        return {"content": "", **given}


Budget: TypeAlias = Annotated[int, Field(ge=-1)]


class ChatRequest(GenerationFields, ToolFields):
    """POST /v1/chat/completions. reasoning_format, as in llama-server: thoughts are separate from the content
    (auto, deepseek) or part of it (none). reasoning_effort and chat_template_kwargs go to the chat template,
    which may ignore them. add_generation_prompt: whether the prompt ends with the beginning of a reply;
    continue_final_message: whether a last message of the assistant is begun, not whole; both are true where
    they are not given, but not together. verbose: also the reply in llama-server's own form.
    reasoning_budget: most tokens of thoughts, -1 for any number; it has three more names, two of which are
    llama-server's."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Most | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    verbose: bool | None = None
    reasoning_budget: Budget | None = None
    reasoning_budget_tokens: Budget | None = None
    thinking_budget_tokens: Budget | None = None
    max_thinking_tokens: Budget | None = None
    generate: bool = True
    """Whether there is a reply: false evaluates the prompt only."""

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "modalities": (["text"],),
        "moderation": (),
        "web_search_options": (),
    }

    @property
    def continues(self) -> bool:
        return any(message.role == "assistant" for message in self.messages)

    @property
    def template_variables(self) -> dict[str, Any]:
        """Effort "none" is no effort, but switches thinking off in templates that know enable_thinking."""
        effort: dict[str, Any] = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        thinking = {"enable_thinking": False} if self.reasoning_effort == "none" else effort
        return {**thinking, **(self.chat_template_kwargs or {})}

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens of thoughts, -1 for any number; None: as the server says."""
        given = (
            self.reasoning_budget,
            self.reasoning_budget_tokens,
            self.thinking_budget_tokens,
            self.max_thinking_tokens,
        )
        return next((one for one in given if one is not None), None)

    @property
    def n_logprobs(self) -> int | None:
        if self.logprobs:
            return max(self.top_logprobs or 0, self.n_probs or 0)
        return self.n_probs or None

    @property
    def tells_reply(self) -> bool:
        return self.generate

    @property
    def max_new_tokens(self) -> int | None:
        if not self.generate:
            return 1
        given = self.max_completion_tokens
        return super().max_new_tokens if given is None else given if given > 0 else None

    def contradiction(self) -> tuple[str, str] | None:
        if self.top_logprobs and not self.logprobs:
            return "top_logprobs", "logprobs must be true"
        if self.continue_final_message and self.add_generation_prompt:
            return (
                "continue_final_message",
                "a reply cannot be continued and begun: not with add_generation_prompt",
            )
        if self.continue_final_message and self.messages[-1].role != "assistant":
            return "continue_final_message", "the last message is not the assistant's"
        if (found := incoherent_tools(self)) is not None:
            return found
        asked, calls = forms(self), calling(self)
        if calls and asked and (calls.required or self.grammar):
            return asked[0], "a reply that calls tools has a form already"
        return super().contradiction()
