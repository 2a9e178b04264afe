"""What the bodies of all requests have in common."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Body(BaseModel):
    """Unknown fields are ignored; an explicit null is the same as an absent field; "1" is no number."""

    model_config = ConfigDict(extra="ignore", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}  # pyright: ignore
        return data


Count: TypeAlias = Annotated[int, Field(ge=0, le=1 << 31)]
LastTokens: TypeAlias = Annotated[int, Field(ge=-1, le=1 << 31)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
