"""Traits that depend only on the op type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.node import Node


def of_type(op_types: Iterable[str]) -> Callable[[Node], bool]:
    known = frozenset(op_types)
    return lambda node: node.op_type in known
