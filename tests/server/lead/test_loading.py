"""What is refused before a model is loaded."""

from __future__ import annotations

import pytest

from server.errors import StartupError
from server.flags import read
from server.lead.loading import load_target
from server.settings import LeadSettings


@pytest.mark.parametrize("flag", ["--batch-size", "--ubatch-size"])
def test_unusable_stable_width_is_refused(flag: str):
    settings = read(LeadSettings, ["--stable-width", "64", flag, "32"])
    with pytest.raises(StartupError, match=f"needs at least {flag} 64"):
        load_target(settings, 1)
