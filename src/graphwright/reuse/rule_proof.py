"""The check that both sides of a rewrite compute the same: both run on random values, once per kind of replacement."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.constants import constant_array
from graphwright.ir.dtypes import element_count, format_shape
from graphwright.ir.edit.copying import CloneResult, copy_nodes
from graphwright.ir.edit.insert import add_placeholder
from graphwright.ir.graph import Graph, Value
from graphwright.ir.text import to_text
from graphwright.ir.traits.values import is_constant, origin
from graphwright.ir.walk import order_of
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.trace_rule import run_side
from graphwright.transform.match import Match

_OPEN_SIZES = (3, 2, 4, 1)
"""Sizes that are tried for all unknown dimensions."""

_UNKNOWN_RANK = 2
_MOST_ELEMENTS = 2**26
"""Larger captured tensors are not run."""

_ROUNDOFFS, _MOST_RELATIVE = 1024, 0.02
"""The tolerance: units of roundoff, and the largest relative difference."""


class RuleProof:
    """Checks replacements before they are made, and counts them.

    Args:
        strict: whether sides that cannot be run are an error; otherwise they are counted.

    Gaps: values are drawn once, normally distributed, integers from 1 to 4; unknown sizes are 3 if both sides run with it.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._verdicts: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def __call__(self, match: Match, replacement: Graph) -> None:
        original = _graph_of(match)
        constants = [constant_array(origin(value).producer) for value in match.captured]
        contents = [None if array is None else (array.shape, array.tobytes()) for array in constants]
        key = f"{to_text(original)}\n{to_text(replacement)}\n{contents}"
        if key not in self._verdicts:
            self._verdicts[key] = self._verdict(match, original, replacement, constants)
        self._counts[self._verdicts[key]] += 1

    def __str__(self) -> str:
        counts = self._counts
        if not counts:
            return "none"
        near = f", {counts['near']:,} equal but for roundings" if counts["near"] else ""
        unproved = f"; {counts['unproved']:,} could not be run, and are not proved" if counts["unproved"] else ""
        return f"{counts['bitwise']:,} of {counts.total():,} equal bit for bit{near}, each run on random values{unproved}"

    def _verdict(self, match: Match, original: Graph, replacement: Graph, constants: list[Any]) -> str:
        where = f"node {match.replaced[0].producer.name!r}"
        expected, feeds, why = _run_original(match, original, constants)
        if why and not self._strict:
            return "unproved"
        if why:
            raise GraphError(
                f"a match cannot be run: {why}",
                where=where,
                cause="its shapes are open, and sizes that fit each other were not found",
                remedy="give the graph static shapes, or leave out prove=True",
            )
        try:
            results = run_side(replacement, feeds)
        except ArgumentError as error:
            raise GraphError(f"the replacement cannot run on the inputs of the pattern: {error.what}", where=where) from error
        pairs = [(np.asarray(old), np.asarray(new)) for old, new in zip(expected, results, strict=True)]
        for k, (old, new) in enumerate(pairs):
            if old.shape != new.shape or old.dtype != new.dtype:
                is_now, was = f"{new.dtype}{list(new.shape)}", f"{old.dtype}{list(old.shape)}"
                raise GraphError(f"result {k} of the replacement is {is_now}, not {was}", where=where)
            if not _is_near(old, new):
                captured = zip(match, map(np.asarray, feeds), strict=True)
                shapes = ", ".join(f"{name} {feed.dtype}{list(feed.shape)}" for name, feed in captured)
                raise GraphError(
                    f"result {k} of the replacement differs from that of the pattern{_difference(old, new)}",
                    where=where,
                    cause=f"the sides are not equal, run with {shapes}",
                    remedy="add a condition under which they are",
                )
        return "bitwise" if all(_is_equal(old, new) for old, new in pairs) else "near"


def _graph_of(match: Match) -> Graph:
    graph = Graph("match", functions=match.replaced[0].producer.graph.functions)
    inputs = [add_placeholder(graph, f"input_{name}", v.dtype, v.shape) for name, v in zip(match, match.captured, strict=True)]
    captured = dict(zip(reversed(match.captured), reversed(inputs), strict=True))  # the first of equal ones
    nodes = dict.fromkeys(match.node_of.values())
    nodes.update(dict.fromkeys(v.producer for node in tuple(nodes) for v in node.inputs if v not in captured and is_constant(v.producer)))
    result = CloneResult(graph, {}, captured)
    copy_nodes(order_of(nodes), result, {}, lambda node: graph.unique_name(node.op_type))
    graph.inputs, graph.outputs = inputs, [result.value_of[value] for value in match.replaced]
    return graph


def _run_original(match: Match, original: Graph, constants: list[Any]) -> tuple[list[Any], list[Any], str]:
    """Return the results of the pattern's side, the feeds, and the reason if it cannot be run."""
    why = ""
    for size in _OPEN_SIZES:
        random = np.random.default_rng(0)
        feeds: dict[Value, Any] = {}
        for value, constant in zip(match.captured, constants, strict=True):
            shape = [size] * _UNKNOWN_RANK if value.shape is None else [size if d is None else d for d in value.shape]
            if value.dtype.itemsize is None or (element_count(tuple(shape)) or 0) > _MOST_ELEMENTS:
                return [], [], f"{value.name} {value.dtype}{format_shape(value.shape)} is too large, or has no random values"
            if value not in feeds:
                feeds[value] = _random_array(random, value.dtype.name, shape) if constant is None else constant
        arrays = [feeds[value] for value in match.captured]
        try:
            return run_side(original, arrays), arrays, ""
        except ArgumentError as error:
            why = error.what
    return [], [], why


def _random_array(random: np.random.Generator, dtype: str, shape: list[int]) -> Any:
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint", "qint", "quint")):
        return random.integers(1, 5, shape).astype(dtype)
    real = random.normal(size=shape)
    if dtype.startswith("complex"):
        return (real + 1j * random.normal(size=shape)).astype(dtype)
    return real.astype(import_tensorflow().bfloat16.as_numpy_dtype if dtype == "bfloat16" else dtype)


def _is_equal(old: Any, new: Any) -> bool:
    return np.array_equal(old, new, equal_nan=old.dtype.kind in "fc")


def _is_near(old: Any, new: Any) -> bool:
    if _is_equal(old, new):
        return True
    if old.dtype.kind not in "fcV" and old.dtype.name != "bfloat16":
        return False
    eps = 2.0**-7 if old.dtype.name == "bfloat16" else min(float(np.finfo(old.dtype).eps) * _ROUNDOFFS, _MOST_RELATIVE)
    wide = np.complex128 if old.dtype.kind == "c" else np.float64
    old, new = old.astype(wide), new.astype(wide)
    scale = float(np.max(np.abs(old[np.isfinite(old)]), initial=0.0))
    return bool(np.allclose(new, old, rtol=eps, atol=eps * scale * 0.01, equal_nan=True))


def _difference(old: Any, new: Any) -> str:
    if old.dtype.kind not in "fiu":
        return ""
    return f" by up to {float(np.nanmax(np.abs(old.astype(np.float64) - new.astype(np.float64)))):.3g}"
