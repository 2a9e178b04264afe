"""What storing costs: a table with a row for each thread."""

from __future__ import annotations

import pytest

from benchmarks import stored


@pytest.mark.redis
def test_table_has_a_row_for_each_thread(capsys: pytest.CaptureFixture[str]):
    assert stored.main(["--replies", "2", "--n", "8"]) == 0
    _, _, loop, writer = capsys.readouterr().out.splitlines()
    assert loop.startswith("| event loop |")
    plain, told, _, fixed = (float(cell) for cell in writer.split("|")[2:6])
    assert plain == 0.0 < 8 * told + fixed
