"""The signature of thoughts, which nobody checks here. Of thoughts that shall not be shown it holds them: the
client sends it back, and the model has them in the next turn. Pure."""

from __future__ import annotations

import base64

UNSIGNED = "unsigned"
"""Of thoughts that are shown: clients drop those without any."""
_HOLDS = "thoughts:"


def holding(thoughts: str) -> str:
    return _HOLDS + base64.b64encode(thoughts.encode()).decode()


def held(signature: str) -> str:
    """The thoughts in it, none in one of others."""
    _, found, encoded = signature.partition(_HOLDS)
    try:
        return base64.b64decode(encoded, validate=True).decode() if found else ""
    except ValueError:
        return ""
