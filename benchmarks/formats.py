"""How well prompts and replies of many families are written and read, against llama.cpp's source.

    python -m benchmarks.formats --llama-cpp DIR [--show TEMPLATE]

DIR is an unpacked source. Prompts are compared as benchmarks.format_prompts does. Each case of its tests of
parsers is read whole, and in pieces of 1, 2 and 3 characters; all must say what it expects. White space
around texts does not count, nor do arguments that are no whole JSON; ids count where the model wrote one.

Then what the templates themselves write for a turn with calls is taken for a reply: it must be read, it must
be what a forced reply may be, and in free text nothing may bar it.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import format_prompts
from benchmarks.chat_cases import Case, cases
from benchmarks.judging import judged_replies, report_written
from server.errors import DuoError
from server.formats.reading import MessageReader
from server.text.form import Form
from server.text.message import Message, folded
from server.text.template import ChatTemplate, Setting, begun_by

PIECES = (1, 2, 3)
USER = {"role": "user", "content": "Hey there!"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """wrong: how a case was read otherwise, "" if it was read as expected."""

    case: Case
    wrong: str

    @property
    def template(self) -> str:
        return Path(self.case.template).stem


class Templates:
    """Templates by their path within the source."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, ChatTemplate] = {}

    def __getitem__(self, path: str) -> ChatTemplate:
        if path not in self._known:
            source = (self._directory / path).read_text()
            self._known[path] = ChatTemplate(source, bos="<s>", eos="</s>")
        return self._known[path]


def form_of(case: Case, template: ChatTemplate) -> Form:
    """How duo would read a reply to the request of this case."""
    family, settings = template.style.family, case.settings
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case.tools}
    form = Form(family.thoughts, channels=family.channels, drops=family.drops)
    if functions:
        form = replace(form, calls=family.calls, functions=functions)
    begun = begun_by(case.messages)
    prompt = prompt_of(case, template)
    form = form.after(prompt, begun.text, thought=begun.thought) if begun else form.after(prompt)
    unread = settings.get("reasoning_format", "NONE").endswith("NONE")
    return form.without_thoughts if unread else form


def prompt_of(case: Case, template: ChatTemplate) -> str:
    """A template that refuses the tools gets none; one that refuses even that tells nothing of the reply."""
    variables: dict[str, Any] = {"enable_thinking": case.settings.get("enable_thinking", True)}
    variables["thinking"] = variables["enable_thinking"]
    messages = case.messages or [USER]
    for tools in (case.tools, []):
        try:
            return template.render(messages, Setting(tools, variables))
        except DuoError:
            continue
    return ""


def read(case: Case, form: Form, size: int) -> Message:
    """size: characters of a piece."""
    reader = MessageReader(form, lambda index: "")
    text = case.reply
    pieces = [piece for at in range(0, len(text), size) for piece in reader.feed(text[at : at + size])]
    return folded([*pieces, *reader.end()])


def difference(case: Case, message: Message) -> str:
    for what, expected, found in (
        ("reasoning", case.reasoning, message.reasoning),
        ("content", case.content, message.content),
    ):
        if expected.strip() != found.strip():
            return f"{what}: {found!r} instead of {expected!r}"
    found = [(call.name, call.arguments, call.id) for call in message.calls]
    alike = len(found) == len(case.calls) and all(map(_same, case.calls, found))
    return "" if alike else f"calls: {found} instead of {list(case.calls)}"


def _same(expected: tuple[str, str, str], found: tuple[str, str, str]) -> bool:
    same_id = not expected[2] or expected[2] == found[2]
    return expected[0] == found[0] and _whole(expected[1]) == _whole(found[1]) and same_id


def _whole(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def outcome(case: Case, template: ChatTemplate) -> Outcome:
    form = form_of(case, template)
    for size in (len(case.reply), *PIECES):
        if wrong := difference(case, continued(case, read(case, form, size))):
            return Outcome(case, f"in pieces of {size}: {wrong}")
    return Outcome(case, "")


def continued(case: Case, message: Message) -> Message:
    """The reply with the beginning that the request gives it."""
    if not case.continues:
        return message
    last = case.messages[-1]
    thought = last["reasoning_content"] if case.reasoning else ""
    return replace(message, content=last["content"] + message.content, reasoning=thought + message.reasoning)


def outcomes(directory: Path) -> Iterator[Outcome]:
    templates = Templates(directory)
    for case in cases((directory / "tests" / "test-chat.cpp").read_text()):
        yield outcome(case, templates[case.template])


def report(found: Sequence[Outcome]) -> Iterator[str]:
    by_template = defaultdict[str, list[Outcome]](list)
    for one in found:
        by_template[one.template].append(one)
    for template, several in sorted(by_template.items()):
        yield f"{_score(several)}  {template}"
    yield f"{_score([one for one in found if one.case.continues])}  replies continued"
    yield f"{_score([one for one in found if not one.case.continues])}  other replies"
    yield f"{_score(found)}  in all"


def _score(found: Sequence[Outcome]) -> str:
    return f"{sum(not one.wrong for one in found):4} of {len(found):3}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR")
    parser.add_argument("--show", metavar="TEMPLATE", help="show what is read otherwise")
    arguments = parser.parse_args()
    found = list(outcomes(arguments.llama_cpp))
    judged = [
        one
        for path in sorted((arguments.llama_cpp / "models" / "templates").glob("*.jinja"))
        for one in judged_replies(path.stem, path.read_text())
    ]
    if arguments.show is not None:
        for one in found:
            if one.wrong and arguments.show in one.template:
                print(f"{one.template}:{one.case.line} {one.case.reply!r}\n    {one.wrong}")
        for one in judged:
            if one.wrong and arguments.show in one.template:
                print(f"{one.template} {one.what}: {one.reply.text!r}\n    {one.wrong}")
    prompts = list(format_prompts.report(arguments.llama_cpp / "models" / "templates"))
    print("Prompts:", *format_prompts.told(prompts), sep="\n")
    print("Cases of the source:", *report(found), sep="\n")
    print("Replies that templates write:", *report_written(judged), sep="\n")


if __name__ == "__main__":
    main()
