"""The command line: duo up, serve, draft, chat, lend, probe, doctor, top."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from server.errors import DuoError, LostModelError, UsageError
from server.flags import meant, read
from server.settings import LeadSettings, UpSettings

USAGE = """usage: duo COMMAND [flags]

  duo up      everything on this machine: embedded Redis, lead, drafter, chat page
  duo serve   a lead: the model behind an OpenAI-compatible API (alias: lead)
  duo draft   a drafter: speculates for the leads on a Redis (alias: back, or duo-drafter)
  duo lend    this machine's memory and devices, for a lead elsewhere (duo up --rpc there)
  duo chat    chat in the terminal with a running lead
  duo probe   whether drafts can change the text of a model on this machine
  duo doctor  where drafts would pay on this machine, and how much
  duo top     watch a running lead: speed, load, drafters

duo COMMAND --help lists the flags, duo --version tells the version."""
COMMANDS = ("up", "serve", "draft", "lend", "chat", "probe", "doctor", "top", "lead", "back", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    The status is 0 on success, 1 after an expected failure (printed in one line), 2 for bad usage, 130 after
    Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    try:
        return _run_command(name, arguments[1:])
    except DuoError as error:
        print(f"duo {name}: {error.message}", file=sys.stderr, flush=True)
        if isinstance(error, LostModelError):
            os._exit(1)  # threads wait in llama.cpp for ever
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # duo up --help | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run_command(name: str, argv: Sequence[str]) -> int:
    """Run the command `name` with the flags in `argv`, and return its exit status.

    Each command imports only what it needs, so that duo chat, for example, does not load llama.cpp.
    """
    match name:
        case "up":
            gc.disable()  # until keep_for_good(): collecting takes a tenth of the imports' time
            settings = read(UpSettings, argv).pinned()
            from server.local.up import up

            return up(settings)
        case "serve" | "lead":
            gc.disable()
            settings = read(LeadSettings, argv).pinned()
            from server.lead.beginning import serve

            return serve(settings)
        case "draft" | "back":
            from drafters.drafter_cli import main as draft

            return draft(list(argv))
        case "lend":
            from server.local.lend import LendSettings, run_lender

            return run_lender(read(LendSettings, argv))
        case "chat":
            from server.terminal.chat_command import ChatSettings, chat

            return chat(read(ChatSettings, argv))
        case "top":
            from server.terminal.top import TopSettings, top

            return top(read(TopSettings, argv))
        case "probe":
            from server.terminal.probe import ProbeSettings, probe

            return probe(read(ProbeSettings, argv).pinned())
        case "doctor":
            from server.doctor.doctor_command import DoctorSettings, doctor

            return doctor(read(DoctorSettings, argv).pinned())
        case _:
            return _no_command(name)


def _no_command(name: str) -> int:
    """Print the help or the version if `name` asks for it or is empty, and return the exit status.

    Raises UsageError for an unknown command.
    """
    match name:
        case "-h" | "--help" | "help":
            print(USAGE)
            return 0
        case "--version" | "-V":
            print(f"duo {version('duo')}")
            return 0
        case "":
            print(USAGE, file=sys.stderr)
            return 2
        case _:
            raise UsageError(f"there is no such command{meant(name, COMMANDS)}: duo --help lists them")
