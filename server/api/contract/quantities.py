"""Types of the numbers in answers."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

Natural: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Byte: TypeAlias = Annotated[int, Field(ge=0, le=255)]
Amount: TypeAlias = Annotated[float, Field(ge=0)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Logprob: TypeAlias = Annotated[float, Field(ge=-9999, le=0)]
