"""The input line of duo chat: editing, history, and messages of several lines."""

from __future__ import annotations

import os
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent


def typing_line() -> PromptSession[str]:
    """Return an input line, whose prompt() returns a message that the user types.

    Enter sends the message. Alt-Enter, or Enter after a backslash, begins a new line, and pasted text may
    have several lines. prompt() raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C.
    """
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        HTML("\n<b><ansicyan>&gt; </ansicyan></b>"),
        multiline=True,
        prompt_continuation="  ",
        key_bindings=keys,
        history=_open_history(),
        enable_history_search=True,
    )


def _open_history() -> History:
    """Return the history, in a file for its owner only, or in memory if that is impossible."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        path = Path(state) / "duo" / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return InMemoryHistory()
    return FileHistory(str(path))
