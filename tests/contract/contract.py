"""openapi.yaml as something to validate against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

CONTRACT: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "openapi.yaml").read_text())


def validate(schema: str, instance: Any) -> None:
    """Check the instance against #/components/schemas/{schema}. Raises jsonschema.ValidationError."""
    whole = {"$ref": f"#/components/schemas/{schema}", "components": CONTRACT["components"]}
    Draft202012Validator(whole).validate(instance)
