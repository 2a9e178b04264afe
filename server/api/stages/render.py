"""Render the prompt of a chat, and say what the model may write after it."""

from __future__ import annotations

from dataclasses import replace

from server.api.chat.chat_request import ChatRequest
from server.api.served import Served
from server.api.stages.picture_words import check_shown, shown_messages
from server.api.stages.prompted import Prompted
from server.api.tools import calling
from server.text.form import Form, Style
from server.text.template import ChatTemplate, Setting, begun_by


def rendered(served: Served, body: ChatRequest, template: ChatTemplate | None = None) -> Prompted:
    """Return the prompt with its text and the forms of its replies.

    Args:
        served: What the server offers.
        body: The request.
        template: Template to use instead of the server's.
    """
    messages, pictures = shown_messages(served, body)
    setting = setting_of(served, body)
    text = _unthinking(served, body, (template or served.template).render(messages, setting))
    check_shown(text, pictures)
    form, begun = form_of(body, served.template.style), begun_by(messages, setting)
    form = form.after(text, begun.text, thought=begun.thought) if begun else form.after(text)
    read = form if reads_thoughts(served, body) else form.without_thoughts
    return Prompted(text, messages=messages, setting=setting, form=read, written=form, pictures=pictures)


def setting_of(served: Served, body: ChatRequest) -> Setting:
    """Return the template's inputs besides the messages.

    Tools that must not be called are still shown if a grammar can forbid calls, so that the prompt shares the
    cached prefix of other turns.
    """
    calls = calling(body)
    hidden = (
        calls
        and not calls.callable
        and (served.grammars is None or not can_forbid_calls(served.template.style))
    )
    tools = (
        [tool.for_template() for tool in calls.tools if not tool.in_message] if calls and not hidden else []
    )
    variables = {**served.template_variables, **body.template_variables}
    return Setting(
        tools, variables, body.continue_final_message is not False, body.add_generation_prompt is not False
    )


def form_of(body: ChatRequest, style: Style) -> Form:
    """Return the form of the replies that the model may write."""
    calls, family = calling(body), style.family
    form = Form(family.thoughts, channels=family.channels, drops=family.drops, stops=style.stops)
    if calls is None or not calls.callable or family.calls is None:
        return form
    functions = {function.name: function.schema_of_arguments for _, function in calls.functions}
    # a model not trained for tools repeats a required call until its reply is full
    repeats = style.in_words and calls.required and not body.parallel_tool_calls
    single = style.single_call or repeats
    most = 1 if single else calls.most
    return replace(form, calls=family.calls, functions=functions, most_calls=most)


def can_forbid_calls(style: Style) -> bool:
    """Return True if a grammar can forbid calls, because each begins with a marker in free text."""
    family = style.family
    return family.calls is not None and not (family.calls.bare or family.channels)


def reads_thoughts(served: Served, body: ChatRequest) -> bool:
    """Return True if the reply's thoughts are told apart from its content."""
    return (body.reasoning_format or served.reasoning_format) != "none"


def _unthinking(served: Served, body: ChatRequest, prompt: str) -> str:
    """Close thoughts that the prompt opens, if the server disables thinking and the body does not choose."""
    thoughts, own = served.template.style.family.thoughts, body.template_variables
    wanted = served.template_variables.get("enable_thinking", True) or "enable_thinking" in own
    if thoughts is None or wanted or body.thinking_budget is not None:
        return prompt
    return prompt + thoughts.close if prompt.rstrip().endswith(thoughts.open.strip()) else prompt
