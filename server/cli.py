"""The command line: duo up, serve, draft, chat, probe, top."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from server.errors import DuoError
from server.flags import read
from server.settings import LeadSettings, UpSettings

USAGE = """usage: duo COMMAND [flags]

  duo up      everything on this machine: embedded Redis, lead, drafter, chat page
  duo serve   a lead: the model behind an OpenAI-compatible API (alias: lead)
  duo draft   a drafter: speculates for the leads on a Redis (alias: back, or duo-drafter)
  duo chat    chat in the terminal with a running lead
  duo probe   whether a model gives the same bits whatever is drafted
  duo top     watch a running lead: speed, load, drafters

duo COMMAND --help lists the flags."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 after an expected failure told in one line, 2 for bad usage, 130 after
    Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = _COMMANDS.get(arguments[0]) if arguments else None
    if command is None:
        asked = bool(arguments) and arguments[0] in ("-h", "--help", "help")
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    try:
        return command(arguments[1:])
    except DuoError as error:
        print(f"duo {arguments[0]}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


# Each command imports what it needs when it runs: duo chat shall not load llama.cpp.


def _up(argv: Sequence[str]) -> int:
    settings = read(UpSettings, argv)
    from server.local.up import up

    return up(settings)


def _serve(argv: Sequence[str]) -> int:
    settings = read(LeadSettings, argv)
    from server.lead.startup import serve

    return serve(settings)


def _draft(argv: Sequence[str]) -> int:
    from drafters.drafter_cli import main as draft

    return draft(list(argv))


def _chat(argv: Sequence[str]) -> int:
    from server.terminal.chat_command import ChatSettings, chat

    return chat(read(ChatSettings, argv))


def _top(argv: Sequence[str]) -> int:
    from server.terminal.top import TopSettings, top

    return top(read(TopSettings, argv))


def _probe(argv: Sequence[str]) -> int:
    from server.terminal.probe import ProbeSettings, probe

    return probe(read(ProbeSettings, argv))


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "up": _up,
    "probe": _probe,
    "serve": _serve,
    "lead": _serve,
    "draft": _draft,
    "back": _draft,
    "chat": _chat,
    "top": _top,
}
