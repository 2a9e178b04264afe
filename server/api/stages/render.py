"""Render the prompt of a chat, and determine the format of its replies."""

from __future__ import annotations

from dataclasses import replace

from server.api.chat.chat_request import ChatRequest
from server.api.services import Services
from server.api.stages.picture_words import check_shown, shown_messages
from server.api.stages.prompted import Prompted
from server.api.tools import calling
from server.text.reply_format import ReplyFormat, Style
from server.text.template import ChatTemplate, Setting, begun_by


def rendered(services: Services, body: ChatRequest, template: ChatTemplate | None = None) -> Prompted:
    """Render a chat, and return the prompt without tokens: its text, pictures and formats of replies.

    Args:
        services: What the server offers.
        body: The request.
        template: Template to use instead of the server's.
    """
    messages, pictures = shown_messages(services, body)
    setting = setting_of(services, body)
    text = _unthinking(services, body, (template or services.template).render(messages, setting))
    check_shown(text, pictures)
    form, begun = form_of(body, services.template.style), begun_by(messages, setting)
    form = form.after(text, begun.text, thought=begun.thought) if begun else form.after(text)
    read = form if reads_thoughts(services, body) else form.without_thoughts
    return Prompted(text, messages=messages, setting=setting, form=read, written=form, pictures=pictures)


def setting_of(services: Services, body: ChatRequest) -> Setting:
    """Return the chat template's inputs besides the messages.

    If no tool may be called, the prompt shows no tools, unless a grammar can forbid calls. In that case it
    shows all tools, so that it shares the cached prefix of turns in which tools may be called.
    """
    calls = calling(body)
    hidden = (
        calls
        and not calls.callable
        and (services.grammars is None or not can_forbid_calls(services.template.style))
    )
    tools = (
        [tool.for_template() for tool in calls.tools if not tool.in_message] if calls and not hidden else []
    )
    variables = {**services.template_variables, **body.template_variables}
    return Setting(
        tools, variables, body.continue_final_message is not False, body.add_generation_prompt is not False
    )


def form_of(body: ChatRequest, style: Style) -> ReplyFormat:
    """Return the format in which a model of this style may write replies to the request."""
    calls, family = calling(body), style.family
    form = ReplyFormat(family.thoughts, channels=family.channels, drops=family.drops, stops=style.stops)
    if calls is None or not calls.callable or family.calls is None:
        return form
    functions = {function.name: function.schema_of_arguments for _, function in calls.functions}
    # a model that was not trained for tools repeats a required call until the reply is full
    repeats = style.in_words and calls.required and not body.parallel_tool_calls
    single = style.single_call or repeats
    most = 1 if single else calls.most
    return replace(form, calls=family.calls, functions=functions, most_calls=most)


def can_forbid_calls(style: Style) -> bool:
    """Return True if a grammar can forbid calls, because each call in free text begins with a marker."""
    family = style.family
    return family.calls is not None and not (family.calls.bare or family.channels)


def reads_thoughts(services: Services, body: ChatRequest) -> bool:
    """Return True if the reply's thoughts are separated from its content."""
    return (body.reasoning_format or services.reasoning_format) != "none"


def _unthinking(services: Services, body: ChatRequest, prompt: str) -> str:
    """Return the prompt. If the server disables thinking, close thoughts that the prompt opens.

    A request with enable_thinking or a limit on thoughts overrides the server's setting.
    """
    thoughts, own = services.template.style.family.thoughts, body.template_variables
    wanted = services.template_variables.get("enable_thinking", True) or "enable_thinking" in own
    if thoughts is None or wanted or body.thinking_budget is not None:
        return prompt
    return prompt + thoughts.close if prompt.rstrip().endswith(thoughts.open.strip()) else prompt
