"""The measurement of HTTP streams: what is read from the wire, what is counted, and a run over the toy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from benchmarks import http
from benchmarks.client import ReplyError
from benchmarks.http import MODES, Round, events, measure_round, result, table, text_of
from benchmarks.http_lead import WARM, LoopThread, Recorder, Told, lead
from server.engine.events import Committed, Event, Finished, Started, Stats

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(*texts: str, after: bytes = b"") -> bytes:
    told = [b"data: " + orjson.dumps({"choices": [{"delta": {"content": t}}]}) + b"\n\n" for t in texts]
    body = after + b"".join(told)
    return b"%x\r\n%b\r\n" % (len(body), body)


END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def texts(received: Sequence[tuple[float, bytes]]) -> list[tuple[float, str]]:
    return [(at, text_of(event)) for at, event in events(received)]


def test_events_are_read_wherever_the_stream_was_cut():
    whole = HEAD + chunk("a") + chunk("bc", "d", after=b": keep-alive\n\n") + END
    expected = ["a", "bc", "d"]
    for cut in range(1, len(whole)):
        told = texts([(1.0, whole[:cut]), (2.0, whole[cut:])])
        assert [text for _, text in told] == expected
        ends = len(HEAD + chunk("a"))
        assert told[0][0] == (1.0 if cut >= ends else 2.0)
        assert told[2][0] == (1.0 if cut >= len(whole) - len(END) else 2.0)


@pytest.mark.parametrize("whole", [b"HTTP/1.1 503 No\r\n\r\nbusy", HEAD + chunk("a"), b""])
def test_what_is_no_whole_stream_is_refused(whole: bytes):
    with pytest.raises(ReplyError):
        events([(1.0, whole)])


def test_latency_is_of_each_token_within_the_window_from_the_end():
    """The first of four tokens is of no text, the second too early to count."""
    told = Told([(10.5, 50, 1.0, 0.5), (20.0, 150, 1.006, 0.502)], {"a": [9.0, 10.0, 11.0, 12.0]})
    one = result(told, {"a": [(10.25, HEAD + chunk("x")), (12.5, chunk("yz") + END)]})
    assert one.latencies == [1.5, 0.5]
    assert one.per_chunk == 2
    assert one.rate == pytest.approx(100 / 9.5)
    assert (one.cost_us, one.kernel_us) == (pytest.approx(40), pytest.approx(20))


def test_streams_that_never_ran_together_are_no_result():
    with pytest.raises(ReplyError, match="more tokens"):
        result(Told([], {}), {})


class Clock(LoopThread):
    """Ten seconds at each look, a fifth of it in the kernel."""

    def __init__(self) -> None:
        self._now = 0.0

    def cpu_s(self) -> float:
        self._now += 10.0
        return self._now

    def kernel_s(self) -> float:
        return self._now / 5


def test_the_window_is_from_the_last_stream_that_begins_to_the_first_that_ends():
    token: Event = Committed((1,), (None,))
    end = Finished("length", Stats(1, 0, 1, 1, 0.0, 0.0))
    recorder = Recorder(2, Clock(), names={1: "a", 2: "b"})
    recorder(1, Started(1, 0))
    for _ in range(WARM + 3):
        recorder(1, token)
    for _ in range(WARM):
        recorder(2, token)
    for id in (1, 2, 2):
        recorder(id, token)
    recorder(2, end)
    recorder(1, token)
    recorder(1, end)
    told = recorder.take()
    (_, *before), (_, *after) = told.marks
    assert [new - old for new, old in zip(after, before, strict=True)] == [3, 10.0, 2.0]
    assert {name: len(times) for name, times in told.emitted.items()} == {"a": WARM + 5, "b": WARM + 2}
    assert recorder.take() == Told([], {})


def test_the_loop_threads_time_is_its_own():
    thread = LoopThread()
    before = thread.cpu_s()
    asyncio.run(asyncio.to_thread(sum, range(3_000_000)))
    elsewhere = thread.cpu_s() - before
    sum(range(3_000_000))
    assert thread.cpu_s() - before - elsewhere > elsewhere
    assert 0 <= thread.kernel_s() <= thread.cpu_s() + 0.02


def test_the_table_has_medians_and_marks_what_is_too_much():
    cheap = Round(1000.0, 40.0, 5.0, 1.0, [0.001] * 99 + [0.5])
    dear = Round(2000.0, 61.0, 7.0, 1.5, [0.002] * 100)
    rows = table({"chat": [cheap, cheap, dear], "logprobs": [dear]}).splitlines()[2:]
    assert rows[0] == "| chat | 40.0 | 5.0 | 1,000 | 1.00 | 1.0 | 2.0 |"
    assert rows[1] == "| logprobs | **61.0** | 7.0 | 2,000 | 1.50 | 2.0 | 2.0 |"


def test_every_mode_streams_all_its_tokens():
    n_tokens = 80
    with lead(3, 0.002) as one:
        for mode in MODES:
            measured = measure_round(mode, one, 3, n_tokens)
            assert measured.cost_us + measured.kernel_us > 0
            assert measured.per_chunk >= 1
            assert 0 < len(measured.latencies) <= 3 * n_tokens
            assert min(measured.latencies) > 0


def test_the_program_appends_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    results = tmp_path / "RESULTS.md"
    results.write_text("# Results\n")
    flags = ["--streams", "2", "--max-tokens", "40", "--rounds", "1", "--step-ms", "0", "--modes", "chat"]
    assert http.main([*flags, "--beside", ".", "--append", str(results)]) == 0
    text = results.read_text()
    assert text.startswith("# Results\n\n## ")
    assert text.removeprefix("# Results\n\n").strip() in capsys.readouterr().out
    assert [line.split(" | ")[0] for line in text.splitlines()[-2:]] == ["| chat, beside", "| chat"]


def test_too_short_streams_are_told_in_one_line(capsys: pytest.CaptureFixture[str]):
    flags = ["--streams", "2", "--max-tokens", str(WARM - 1), "--rounds", "1", "--modes", "chat"]
    assert http.main(flags) == 1
    assert capsys.readouterr().err.startswith("http: the streams did not all run at once")
