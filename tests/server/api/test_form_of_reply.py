"""What a model may write, by the request and by what its template tells."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.chat.chat_request import ChatRequest
from server.api.stages.render import form_of
from server.text.template import ChatTemplate
from tests.templates import MISTRAL

FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "properties": {}}}
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "?"}],
    "tools": [{"type": "function", "function": FUNCTION}],
}


@pytest.mark.parametrize(
    ("template", "choice", "most"),
    [(None, "required", 1), (None, "auto", None), (MISTRAL, "required", None), (MISTRAL, "auto", None)],
)
def test_required_tool_is_called_once(template: str | None, choice: str, most: int | None):
    """A model that was not trained for tools repeats a required call for ever."""
    body = ChatRequest.model_validate({**BODY, "tool_choice": choice})
    assert form_of(body, ChatTemplate(template).style).most_calls == most


def test_several_calls_are_made_where_asked_for():
    body = ChatRequest.model_validate({**BODY, "tool_choice": "required", "parallel_tool_calls": True})
    assert form_of(body, ChatTemplate(None).style).most_calls is None
