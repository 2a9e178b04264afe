"""Whether duo's prompts are those that transformers would make, for every chat template of a directory.

A prompt is right if it is the reference's. Where that refuses a conversation or loses a part of it, duo
adapts: then a prompt is right if it shows all texts in order, and a template that takes tools no
marks of another family. Where a conversation goes on after a reply, what duo evaluates in advance has to be
the beginning of the prompt up to the new message."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import program
from benchmarks.format_histories import CONVERSATIONS, Conversation, Message
from benchmarks.reference_prompts import BOS, EOS, Reference, reference
from server.api.chat.chat_request import ChatRequest
from server.cache.radix import common_prefix
from server.errors import DuoError
from server.text.adapting import text_of
from server.text.template import ChatTemplate, Setting

HERMES = ("<tool_call>", "<tool_response>")
"""Marks that duo takes for templates without words for tools."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One prompt. why: what is wrong with it; None if nothing is. adapted: the reference has none."""

    conversation: str
    why: str | None
    adapted: bool


@dataclass(frozen=True, slots=True)
class TemplatePrompts:
    """All prompts of one template."""

    template: str
    prompts: Sequence[Judged]

    @property
    def right(self) -> bool:
        return not any(one.why for one in self.prompts)


def report(directory: Path) -> Iterator[TemplatePrompts]:
    """Every template (*.jinja) of the directory with every conversation."""
    for path in sorted(directory.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        template = ChatTemplate(source, bos=BOS, eos=EOS)
        yield TemplatePrompts(path.stem, [_judged(template, source, one) for one in CONVERSATIONS])


def _judged(template: ChatTemplate, source: str, conversation: Conversation) -> Judged:
    expected = reference(source, conversation)
    adapted = expected.prompt is None or bool(expected.lost)
    messages, setting = _sent(conversation)
    try:
        prompt = template.render(messages, setting)
        unsettled = _unsettled(template, messages, setting, prompt)
    except DuoError as error:
        return Judged(conversation.name, str(error), adapted)
    fault = _fault(prompt, expected, conversation) or unsettled
    foreign = [mark for mark in HERMES if mark in prompt and mark not in source] if "tools" in source else []
    return Judged(conversation.name, fault or (f"foreign marks {foreign}" if foreign else None), adapted)


def _sent(conversation: Conversation) -> tuple[list[Message], Setting]:
    """As POST /v1/chat/completions takes it."""
    body = ChatRequest.model_validate(
        {
            "messages": conversation.messages,
            "tools": list(conversation.tools) or None,
            "chat_template_kwargs": dict(conversation.variables) or None,
        }
    )
    tools = [tool.for_template() for tool in body.tools or ()]
    return [message.for_template() for message in body.messages], Setting(tools, body.template_variables)


def _unsettled(
    template: ChatTemplate, messages: Sequence[Message], setting: Setting, prompt: str
) -> str | None:
    """What is wrong with the beginning of the prompt that is known when the last reply has ended."""
    n_new = next((n for n, one in enumerate(reversed(messages)) if one["role"] == "assistant"), 0)
    if not n_new or messages[-n_new]["role"] == "system":  # which duo does not expect
        return None
    settled = template.settled(messages[: -n_new - 1], messages[-n_new - 1], setting)
    if settled is None:
        return "nothing of the next prompt is known"
    first = text_of(messages[-n_new]["content"])[:4]
    at_message = prompt.startswith(settled) and prompt[len(settled) :].startswith(first)
    return None if at_message else f"known is {settled[-40:]!r} of {prompt!r}"


def _fault(prompt: str, expected: Reference, conversation: Conversation) -> str | None:
    if prompt == expected.prompt:
        return None
    if expected.prompt is None or expected.lost:
        lost = conversation.missing(prompt)
        return f"adapted without {lost}" if lost else None
    return _difference(prompt, expected.prompt)


def _difference(prompt: str, expected: str) -> str:
    """Where the two first differ."""
    at = common_prefix(prompt, expected)
    return f"after {prompt[max(0, at - 30) : at]!r}: {prompt[at : at + 40]!r} not {expected[at : at + 40]!r}"


def told(all_prompts: Sequence[TemplatePrompts]) -> Iterator[str]:
    judged = [one for template in all_prompts for one in template.prompts]
    yield f"templates all right: {sum(one.right for one in all_prompts)} of {len(all_prompts)}"
    n_right, n_adapted = sum(not one.why for one in judged), sum(one.adapted for one in judged)
    yield f"prompts right: {n_right} of {len(judged)}, of which {n_adapted} had to be adapted"
    for template in all_prompts:
        faults = [f"- {one.conversation}: {one.why}" for one in template.prompts if one.why]
        if faults:
            yield "\n".join((f"### {template.template}", *faults))


def make_parser() -> argparse.ArgumentParser:
    parser = program.make_parser("format_prompts", __doc__ or "")
    parser.add_argument("templates", type=Path, help="a directory of chat templates (*.jinja)")
    return parser


def measure(args: argparse.Namespace) -> program.Result:
    found = list(report(args.templates))
    return f"prompts of {len(found)} chat templates", list(told(found))


main = program.main(make_parser, measure)

if __name__ == "__main__":
    sys.exit(main())
