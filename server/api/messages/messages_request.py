"""The body of a request to Anthropic's Messages API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from server.api.body import Body, EchoedSchema, Neutral, TextPart
from server.api.generation_fields import MAX_STOPS, UNSUPPORTED, SharedFields
from server.api.messages.context_edits import ContextEdits, SummaryRequest
from server.api.messages.messages_tools import AnyTool
from server.api.messages.request_blocks import Block

Effort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]


class TurnOutput(Body):
    effort: Effort | None = None
    """Like output_config.effort of the request, but only for the reply to this turn."""


class Turn(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(fail_fast=True)] = ""
    clear_at: Literal["next_user_message", "never"] | None = None
    """next_user_message: leave the system turn out once a user turn follows."""
    output_config: TurnOutput | None = None
    """Only for system turns."""


class ChoiceOfTool(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """Required if the type is tool."""
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """Options to turn thinking on or off, and to choose how thoughts are sent."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    """Maximum tokens of thoughts, for enabled. Absent: the server's --reasoning-budget."""
    display: Literal["summarized", "omitted"] | None = None
    """omitted: thoughts are generated, but sent only in their signature."""


class OutputFormat(Body):
    type: Literal["json_schema"]
    definition: EchoedSchema = Field(alias="schema")
    """Nested at most 120 levels deep."""


class OutputConfig(Body):
    effort: Effort | None = None
    """Passed to the chat template, which may ignore it."""
    format: OutputFormat | None = None
    task_budget: Any = None
    """Has no effect; the message then contains a warning."""


class ThreadOptions(Body):
    """A request to keep the conversation, or to continue a kept one."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None
    """Required if the type is continue."""


class DiagnosticsOptions(Body):
    """A request to compare the prompt with an earlier one, or to allow such comparisons later."""

    previous_message_id: str | None = None


class MessagesRequest(SharedFields):
    """POST /v1/messages.

    Any model name is accepted, because Anthropic's clients only know Anthropic's models. output_format is the
    former name of output_config.format.
    """

    messages: Annotated[list[Turn], Field(min_length=1, fail_fast=True)]
    """If the last message is the assistant's, the reply continues it."""
    system: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Absent: the reply may fill the context."""
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] = Field(
        default_factory=list[str]
    )
    tools: Annotated[list[AnyTool], Field(fail_fast=True)] | None = None
    tool_choice: ChoiceOfTool | None = None
    thinking: Thinking | None = None
    """Absent: the model thinks if its chat template allows it."""
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    thread: ThreadOptions | None = None
    """create: keep the conversation under the id of the message. continue: continue the conversation kept
    under previous_message_id; its system and tools apply if this request has none. The server keeps a bounded
    number of conversations, in memory."""
    diagnostics: DiagnosticsOptions | None = None
    """Report in the message where its prompt differs from that of an earlier message with this field."""
    context_management: ContextEdits | None = None
    """Parts to leave out of a long conversation; the message lists the parts that were left out."""
    compaction: SummaryRequest | None = None
    """Answer with a summary of the conversation instead of a reply. Not with context_management."""

    unsupported: ClassVar[Neutral] = {
        **UNSUPPORTED,
        "return_progress": (False,),
        "container": (),
        "mcp_servers": ([],),
    }

    def contradiction(self) -> tuple[str, str] | None:
        if (choice := self.tool_choice) and choice.type == "tool" and choice.name is None:
            return "tool_choice.name", "required"
        if self.thread and self.thread.type == "continue" and self.thread.previous_message_id is None:
            return "thread.previous_message_id", "required"
        if self.compaction and self.context_management:
            return "compaction", "not with context_management: send one of them"
        return super().contradiction()
