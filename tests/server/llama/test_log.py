"""What llama.cpp says on its way out is seen: ggml ends the process right after."""

from __future__ import annotations

import logging

import pytest

from server.llama import library


@pytest.mark.parametrize(
    ("level", "line", "seen"),
    [
        (4, b"CUDA error: an illegal memory access was encountered\n", True),
        (4, b"decode: failed to find a memory slot\n", False),
        (3, b"something of no consequence\n", False),
    ],
)
def test_only_fatal_output_is_shown(
    level: int, line: bytes, seen: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    """This includes drafters of `duo up`, whose log nobody reads."""
    with caplog.at_level(logging.ERROR):
        library.log_line(level, line, None)
    assert not caplog.records
    assert capsys.readouterr().err == line.decode() * seen
