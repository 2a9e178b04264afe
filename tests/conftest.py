"""Fixtures that several kinds of test share."""

from __future__ import annotations
