"""duo chat: a conversation in the terminal, or one question from the command line or a pipe."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import httpx
from pydantic import Field
from pydantic_settings import CliPositionalArg, SettingsConfigDict
from rich.console import Console
from rich.text import Text

from server.client_settings import ClientSettings
from server.errors import DuoError
from server.flags import meant
from server.terminal.dialogue import Dialogue, model_of
from server.terminal.shown_replies import ShownReplies
from server.terminal.typing_line import typing_line

HINT = "Type a message, :help for commands. Ctrl-C stops a reply, Ctrl-D leaves."
COMMANDS = {
    ":new": "begin a new conversation",
    ":retry": "ask the last question again",
    ":system TEXT": "set the system message; without TEXT remove it",
    ":set NAME VALUE": "set a field of every request, such as temperature 0.5; without VALUE reset it; "
    "without NAME list the fields",
    ":save FILE": "write the conversation",
    ":load FILE": "go on with a saved conversation",
    ":help": "this list",
    ":quit": "leave",
}


class ChatSettings(ClientSettings):
    """Chat in the terminal with a running lead, or ask one question: duo chat "why?", or duo chat < file."""

    model_config = SettingsConfigDict(
        env_prefix="DUO_CHAT_", cli_prog_name="duo chat", cli_shortcuts={"system": "s"}
    )

    question: CliPositionalArg[list[str]] = Field([], description="ask once and print only the reply")
    system: str | None = Field(None, description="a system message")
    temp: float | None = Field(None, ge=0, description="temperature (default: the server's)")
    max_tokens: int | None = Field(None, ge=1, description="maximum tokens of a reply")


def chat(settings: ChatSettings) -> int:
    """Run duo chat until :quit or the end of input. Raises StartupError if no lead answers."""
    given = {"temperature": settings.temp, "max_tokens": settings.max_tokens}
    fields = {name: value for name, value in given.items() if value is not None}
    with settings.client(httpx.Timeout(10, read=None)) as client:  # a reply may take any time to begin
        model = model_of(client)
        dialogue = Dialogue(client, settings.system, fields)
        if settings.question or not sys.stdin.isatty():
            piped = "" if sys.stdin.isatty() else _read_all(sys.stdin).strip()
            given = " ".join(settings.question).encode(errors="replace").decode()
            return answer_once(dialogue, "\n\n".join(filter(None, [given, piped])))
        console = Console(highlight=False)
        console.print(Text(f"{model} at {settings.url}", "bold"))
        console.print(Text(HINT, "dim"))
        Terminal(console, dialogue).run(typing_line().prompt)
        return 0


def _read_all(file: TextIO) -> str:
    """Return all input, with U+FFFD for bytes that are not UTF-8."""
    if isinstance(file, io.TextIOWrapper):
        file.reconfigure(encoding="utf-8", errors="replace")
    return file.read()


def answer_once(dialogue: Dialogue, question: str) -> int:
    """Ask one question, and print the reply and nothing else. Raises DuoError."""
    if not question:
        raise DuoError("nothing was asked: give a question after duo chat, or on standard input")
    ended = ""
    for chunk in dialogue.ask(question):
        for choice in chunk["choices"]:
            ended = choice["delta"].get("content") or ended
            print(choice["delta"].get("content") or "", end="", flush=True)
    if not ended.endswith("\n"):
        print()
    return 0


class Terminal:
    """Reads lines, carries out commands, and shows replies with guessed text in colour."""

    def __init__(self, console: Console, dialogue: Dialogue) -> None:
        self._console = console
        self._dialogue = dialogue
        self._replies = ShownReplies(console, dialogue)

    def run(self, read: Callable[[], str]) -> None:
        """Handle lines, which `read` returns, until :quit, the end of input, or Ctrl-C twice."""
        warned = False
        while True:
            try:
                text = read().rstrip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if warned:
                    return
                warned = True
                self._say_line("Ctrl-C again leaves, as :quit does.")
                continue
            warned = False
            if text == ":quit":
                return
            try:
                self._do_command(text)
            except DuoError as error:
                self._console.print(Text(error.message, "red"))

    def _do_command(self, text: str) -> None:
        if not text.startswith(":"):
            if text.strip():
                self._replies.ask(text.strip())
            return
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        match name:
            case ":new":
                self._dialogue.clear()
                self._say_line("A new conversation.")
            case ":retry":
                question = self._dialogue.take_back()
                if question is None:
                    raise DuoError("nothing was asked yet")
                self._replies.ask(question)
            case ":system":
                self._dialogue.set_system(rest)
                self._say_line("The system message is set." if rest else "No system message.")
            case ":set":
                self._set_field(*rest.split(maxsplit=1))
            case ":save" | ":load":
                self._file_command(name, rest)
            case ":help":
                for command, what in COMMANDS.items():
                    self._say_line(f"  {command:<16} {what}")
                self._say_line("Alt-Enter, or a backslash before Enter, begins a new line.")
            case _:
                known = [command.partition(" ")[0] for command in COMMANDS]
                what = "was not sent: :help lists the commands, a space in front makes it a message"
                raise DuoError(f"{name} is no command{meant(name, known)} and {what}")

    def _set_field(self, name: str = "", value: str = "") -> None:
        fields = self._dialogue.fields
        if not name:
            self._say_line(
                "\n".join(f"  {key} {json.dumps(one)}" for key, one in fields.items()) or "Nothing is set."
            )
        elif not value:
            fields.pop(name, None)
            self._say_line(f"{name}: the server's default.")
        else:
            try:
                fields[name] = json.loads(value)
            except ValueError:
                fields[name] = value
            self._say_line(f"{name}: {json.dumps(fields[name])}")

    def _file_command(self, command: str, name: str) -> None:
        if not name:
            raise DuoError(f"{command} wants a file's name")
        path = Path(name).expanduser()
        if command == ":save":
            self._dialogue.save(path)
            self._say_line(f"Saved as {path}.")
        else:
            self._dialogue.load(path)
            for message in self._dialogue.messages:
                self._console.print(Text(f"\n{message['role']}", "bold cyan"))
                self._console.print(Text(message["content"]))

    def _say_line(self, text: str) -> None:
        self._console.print(Text(text, "dim"))
