"""Encode texts that clients keep and send back without reading them: thoughts and summaries. Pure.

Nothing here is secret, and no signature is checked: a client could read the text or write another text.
"""

from __future__ import annotations

import base64

UNSIGNED = "unsigned"
"""Signature of visible thoughts, because clients drop thoughts without a signature."""
_THOUGHTS = "thoughts:"
_SUMMARY = "summary:"


def encode_thoughts(thoughts: str) -> str:
    """Return thoughts encoded for clients to send back: as a signature, or as encrypted content."""
    return _THOUGHTS + _encode_text(thoughts)


def decode_thoughts(signature: str) -> str:
    """Return the thoughts in a signature, "" if another server wrote it."""
    return _decode_text(signature, _THOUGHTS)


def sealed_summary(summary: str) -> str:
    """Return a conversation's summary encoded as encrypted content."""
    return _SUMMARY + _encode_text(summary)


def summary_in(content: str) -> str:
    """Return the summary in encrypted content, "" if another server wrote it."""
    return _decode_text(content, _SUMMARY)


def _encode_text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode_text(sealed: str, kind: str) -> str:
    _, found, encoded = sealed.partition(kind)
    try:
        return base64.b64decode(encoded, validate=True).decode() if found else ""
    except ValueError:
        return ""
