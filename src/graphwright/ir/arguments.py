"""What is known of an argument of a function before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphwright.ir.dtypes import DType, Shape

Numbers = tuple[Any, Any]
"""Arrays of whole numbers: the least and the largest that each can be when it runs."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument.

    Attributes:
        shape: its own; where it depends on data, the largest that it can be.
        handle: of a list or a variable, the dtype and shape of its elements or of its value.
        numbers: of a few whole numbers, where they are known.
        exact: of a shape that depends on data, what is the same in every run; else None.
    """

    shape: Shape
    handle: tuple[DType, Shape] | None = None
    numbers: Numbers | None = None
    exact: Shape = None
