"""The longest common prefix."""

from __future__ import annotations

from typing import AnyStr


def common_prefix(a: AnyStr, b: AnyStr) -> int:
    """Length of the longest common prefix. Bisects over slices, which C compares."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
