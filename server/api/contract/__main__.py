"""Write openapi.yaml to standard output, for `make openapi`."""

from __future__ import annotations

import sys
from typing import Any

import yaml

from server.api.contract.document import document

WIDTH = 118
HEAD = "# Generated from server/api by `make openapi`: change the models there.\n"


class _Plain(yaml.SafeDumper):
    """A YAML dumper that writes no anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def text() -> str:
    """Return the contents of openapi.yaml."""
    dumped = yaml.dump(
        document(), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=WIDTH, default_flow_style=None
    )
    return f"{HEAD}{dumped}"


if __name__ == "__main__":
    sys.stdout.write(text())
