"""A flat graph whose shapes can be set for any batch size, found by comparing the flat graphs of three.

Where it is the same graph each time, and each dimension is affine in the batch size through the first two and right at the third,
the graph of another size is known without tracing: up to the size at which a constant is too large to be folded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphwright.errors import UnknownShapeError
from graphwright.ir.graph import Graph, Value
from graphwright.ir.traits.values import is_constant
from graphwright.step.flatten import FlatStep
from graphwright.transform.fold_constants import LARGEST_FOLDED_BYTES

Affine = tuple[int, int]
"""Constant and slope."""


@dataclass(frozen=True)
class BoundGraph:
    """A flat step for all batch sizes of a range.

    Attributes:
        flat: its graph, with the shapes of the size that was asked for last.
        open: per value whose shape depends on the batch size, its dimensions.
        variant_bytes: of `LoopCosts`.
        workspace: of `LoopCosts`.
    """

    flat: FlatStep
    open: Mapping[Value, tuple[Affine, ...]]
    variant_bytes: Mapping[Any, Affine]
    workspace: Mapping[Any, Affine]

    def at(self, size: int) -> FlatStep:
        """The step with the shapes of a batch size; the next call changes them."""
        for value, dims in self.open.items():
            value.shape = tuple(constant + slope * size for constant, slope in dims)
        loops = self.flat.loops
        if loops.variant_bytes or loops.workspace:
            variant_bytes = {key: constant + slope * size for key, (constant, slope) in self.variant_bytes.items()}
            workspace = {key: constant + slope * size for key, (constant, slope) in self.workspace.items()}
            loops = replace(loops, variant_bytes=variant_bytes, workspace=workspace)
        return replace(self.flat, loops=loops)

    def first_border(self) -> int | None:
        """The first size for which a constant is not folded any more, so that the graph is another one."""
        constants = (value for value in self.open if is_constant(value.producer))
        lines = [pair for value in constants if (pair := self._bytes_of(value)) is not None]
        reached = (-((constant - LARGEST_FOLDED_BYTES - 1) // slope) for constant, slope in lines if slope > 0)
        return min((size for size in reached if size > 1), default=None)

    def _bytes_of(self, value: Value) -> Affine | None:
        """Bytes as a line; None where it is none."""
        dims = self.open.get(value)
        if dims is None:
            return None if value.nbytes is None else (value.nbytes, 0)
        lines = [line for line in dims if line[1]]
        if len(lines) != 1 or not isinstance(value.dtype.itemsize, int):
            return None
        factor = value.dtype.itemsize * math.prod(constant for constant, slope in dims if not slope)
        return lines[0][0] * factor, lines[0][1] * factor


def bind_shapes(flats: Mapping[int, FlatStep]) -> BoundGraph:
    """What three flat steps, by batch size, have in common; the first two fit, the third checks.

    Raises:
        UnknownShapeError: they have no formula; the message says why.
    """
    sizes = tuple(flats)
    first, second, third = flats.values()
    _check_structure(first.graph, second.graph, sizes[:2])
    _check_structure(second.graph, third.graph, sizes[1:])
    shapes: dict[Value, tuple[Affine, ...]] = {}
    for nodes in zip(first.graph.nodes, second.graph.nodes, third.graph.nodes, strict=True):
        for values in zip(*(node.outputs for node in nodes), strict=True):
            dims = _dimensions([v.shape for v in values], sizes, values[0].name)
            if any(slope for _, slope in dims):
                shapes[values[2]] = dims
    loops = [flat.loops for flat in flats.values()]
    return BoundGraph(
        third,
        shapes,
        _bytes_by_name([held.variant_bytes for held in loops], sizes),
        _bytes_by_name([held.workspace for held in loops], sizes),
    )


def _check_structure(one: Graph, other: Graph, sizes: tuple[int, ...]) -> None:
    """Raise where two graphs differ in more than shapes."""
    if len(one) != len(other):
        raise UnknownShapeError(f"the graph has {len(one):,} nodes at batch size {sizes[0]} and {len(other):,} at {sizes[1]}")
    for a, b in zip(one.nodes, other.nodes, strict=True):
        same = a.name == b.name and a.op_type == b.op_type and len(a.outputs) == len(b.outputs)
        if not same or [v.name for v in a.inputs] != [v.name for v in b.inputs]:
            raise UnknownShapeError(
                f"the graph has {a.name!r} ({a.op_type}) at batch size {sizes[0]}, where it has {b.name!r} ({b.op_type}) at {sizes[1]}"
            )


def _dimensions(shapes: list[tuple[int | None, ...] | None], sizes: tuple[int, ...], name: str) -> tuple[Affine, ...]:
    first, second, third = shapes
    if first is None or second is None or third is None:
        if first is second is third:
            return ()
        raise UnknownShapeError(f"the shape of {name} is known at some batch sizes only")
    if not len(first) == len(second) == len(third):
        raise UnknownShapeError(f"{name} has another number of dimensions at another batch size")
    if None in first and first == second == third:
        return ()  # depends on data
    return tuple(_line(dims, sizes, f"the shape of {name}") for dims in zip(first, second, third, strict=True))


def _line(figures: tuple[int | None, ...], sizes: tuple[int, ...], what: str) -> Affine:
    """The line through the first two figures, if it gives the third."""
    a, b, c = figures
    if a is not None and b is not None and c is not None:
        slope, rest = divmod(b - a, sizes[1] - sizes[0])
        constant = a - slope * sizes[0]
        if not rest and constant + slope * sizes[2] == c:
            return constant, slope
    raise UnknownShapeError(f"{what} is not affine in the batch size")


def _bytes_by_name(held: list[Mapping[Any, int]], sizes: tuple[int, ...]) -> dict[Any, Affine]:
    """Bytes of lists, or of what loops need, as lines; by the keys of the third."""
    named = [{key.name: nbytes for key, nbytes in mapping.items()} for mapping in held]
    if not named[0].keys() == named[1].keys() == named[2].keys():
        raise UnknownShapeError("loops hold other lists at another batch size")
    return {key: _line(tuple(by_name[key.name] for by_name in named), sizes, f"what is held by {key.name}") for key in held[2]}
