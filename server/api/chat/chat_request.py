"""The body of a chat completion request: what is honoured, and what is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from server.api.body import Body, Neutral
from server.api.content import Content, joined
from server.api.generation_fields import UNSUPPORTED, GenerationFields, TopLogprobs
from server.api.structured import forms
from server.api.tools import ToolFields, calling
from server.api.tools import incoherent as incoherent_tools


class FunctionCall(Body):
    name: str
    arguments: str = "{}"


class CallInMessage(Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Body):
    """content: a string, text parts (joined), or null. reasoning_content: of an earlier reply, as it came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallInMessage], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        """What chat templates expect; they know no developer role."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": joined(self.content or "")}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        return message


class ChatRequest(GenerationFields, ToolFields):
    """POST /v1/chat/completions. reasoning_format, as in llama-server: whether thoughts are told apart from
    the content (auto and deepseek), or left in it (none). reasoning_effort and chat_template_kwargs are for
    the chat template, which may not know them."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    reasoning_format: Literal["none", "auto", "deepseek"] = "auto"
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        "n_predict": (-1,),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "modalities": (["text"],),
        "moderation": (),
        "web_search_options": (),
    }

    @property
    def template_variables(self) -> dict[str, Any]:
        """Without any effort, templates that know enable_thinking have the model not think."""
        effort: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            effort["reasoning_effort"] = self.reasoning_effort
        if self.reasoning_effort == "none":
            effort["enable_thinking"] = False
        return {**effort, **(self.chat_template_kwargs or {})}

    @property
    def n_logprobs(self) -> int | None:
        if self.logprobs:
            return max(self.top_logprobs or 0, self.n_probs or 0)
        return self.n_probs or None

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def contradiction(self) -> tuple[str, str] | None:
        if self.top_logprobs and not self.logprobs:
            return "top_logprobs", "logprobs must be true"
        if (found := incoherent_tools(self)) is not None:
            return found
        asked, calls = forms(self), calling(self)
        if calls and asked and (calls.required or self.grammar):
            return asked[0], "a reply that calls tools has a form already"
        return super().contradiction()
