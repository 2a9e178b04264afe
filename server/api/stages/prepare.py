"""Prepare a validated request to be submitted, stage by stage. Slow: not for the event loop."""

from __future__ import annotations

from server.api.chat.chat_request import ChatRequest
from server.api.completions.completion_request import CompletionRequest
from server.api.generation_fields import GenerationFields
from server.api.served import Served
from server.api.stages.constrain import constrained
from server.api.stages.prompted import Prompted
from server.api.stages.render import rendered
from server.api.stages.submit import requested
from server.api.stages.tokenize import tokenized, tokenized_texts


def prepared_chat(served: Served, body: ChatRequest) -> Prompted:
    """Return the prompt of a chat, ready to be submitted.

    Raises:
        InvalidRequestError: A prompt that is too long raises it before a grammar is compiled.
    """
    return prepared(served, body, tokenized(served, body, rendered(served, body)))


def prepared_texts(served: Served, body: CompletionRequest) -> list[Prompted]:
    """Return the prompts of a completion, ready to be submitted. Raises InvalidRequestError."""
    return [prepared(served, body, prompt) for prompt in tokenized_texts(served, body)]


def prepared(served: Served, body: GenerationFields, prompt: Prompted) -> Prompted:
    """Return a prompt that has tokens, ready to be submitted. Raises InvalidRequestError."""
    return requested(served, body, constrained(served, body, prompt))
