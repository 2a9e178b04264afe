"""Templates of model files that Jinja or the interpreter cannot read are one line, not a traceback."""

from __future__ import annotations

import pytest

from server.errors import StartupError
from server.text.sandbox import Sandboxed

UNREADABLE = {
    "no end": "{% if x %}",
    "deep brackets": "{{ " + "(" * 200 + "1" + ")" * 200 + " }}",
    "deeper than Python reads": "{{ " + "[" * 100 + "1" + "]" * 100 + " }}",
    "deep blocks": "{% if x %}" * 200 + "{% endif %}" * 200,
    "a long number": "{{ " + "9" * 5000 + " }}",
}


@pytest.mark.parametrize("source", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_template_is_reported(source: str):
    with pytest.raises(StartupError, match="chat template cannot be read"):
        Sandboxed(source)
