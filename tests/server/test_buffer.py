"""Memory for states: what is asked for, and given back at once."""

from __future__ import annotations

import gc
import mmap
import sys
import weakref
import zlib

import pytest

from server.buffer import HUGE_PAGES, LARGE, buffer


@pytest.mark.parametrize("n_bytes", [0, 1, 4096, LARGE - 1, LARGE, LARGE + 4097])
def test_it_is_as_long_as_asked_for_and_bytes(n_bytes: int):
    data = buffer(n_bytes)
    assert (len(data), data.nbytes, data.format, data.readonly) == (n_bytes, n_bytes, "B", False)
    assert data == bytes(n_bytes)
    if n_bytes:
        data[-1] = 7
        assert data.toreadonly()[n_bytes - 1 :] == b"\7"
        assert zlib.crc32(data) == zlib.crc32(bytes(n_bytes - 1) + b"\7")


def test_two_are_never_the_same():
    one, two = buffer(LARGE), buffer(LARGE)
    one[0] = 1
    assert two[0] == 0


@pytest.mark.skipif(HUGE_PAGES is None, reason="only Linux has a choice")
def test_it_is_given_back_with_its_last_view():
    gc.disable()
    try:
        data = buffer(LARGE)
        assert isinstance(data.obj, mmap.mmap)
        there = weakref.ref(data.obj)
        view = data.toreadonly()[100:200]
        del data
        assert there() is not None
        del view
        assert there() is None
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory may be promised that nobody has")
def test_what_cannot_be_had_is_told():
    with pytest.raises(MemoryError):
        buffer(1 << 50)
