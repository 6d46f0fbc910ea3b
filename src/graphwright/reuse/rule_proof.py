"""Do both sides of a rewrite compute the same? Each pair is run on random values of what it captures, once per kind of pair."""

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
from graphwright.source.trace_rule import run_side
from graphwright.transform.match import Match

_SIZES = (3, 2, 4, 1)
"""What open sizes are tried as, all the same."""
_RANK = 2
_LARGEST = 2**26
"""Elements of what is captured; what is larger is not run."""
_ROUNDINGS, _MOST = 1024, 0.02
"""How far results may lie apart, relatively: as many roundings, but no more than that."""


class RuleProof:
    """Checks replacements before they are made, and keeps count.

    Args:
        strict: whether what cannot be run is an error; else it is counted.

    Gaps: values are drawn once, of a normal distribution, whole numbers from 1 to 4; an open size is 3 where both sides run with that.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._strict = strict
        self._known: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def __call__(self, match: Match, made: Graph) -> None:
        """Raise where the replacement gives something else than the match.

        Raises:
            GraphError: results differ, or one side cannot be run.
        """
        before = _alone(match)
        arrays = [constant_array(origin(value).producer) for value in match.captured]
        key = f"{to_text(before)}\n{to_text(made)}\n{[None if a is None else (a.shape, a.tobytes()) for a in arrays]}"
        if key not in self._known:
            self._known[key] = self._compared(match, before, made, arrays)
        self._counts[self._known[key]] += 1

    def __str__(self) -> str:
        counts = self._counts
        if not counts:
            return "none"
        near = f", {counts['near']:,} equal but for roundings" if counts["near"] else ""
        unproved = f"; {counts['unproved']:,} could not be run, and are not proved" if counts["unproved"] else ""
        return f"{counts['bitwise']:,} of {counts.total():,} equal bit for bit{near}, each run on random values{unproved}"

    def _compared(self, match: Match, before: Graph, made: Graph, arrays: list[Any]) -> str:
        where = f"node {match.replaced[0].producer.name!r}"
        ours, feeds, why = _run_somehow(match, before, arrays)
        if why and not self._strict:
            return "unproved"
        try:
            theirs = run_side(made, feeds) if not why else []
        except ArgumentError as error:
            raise GraphError(f"the replacement cannot run what the pattern runs: {error.what}", where=where) from error
        if why:
            raise GraphError(
                f"a match cannot be run: {why}",
                where=where,
                cause="its shapes are open, and sizes that fit each other were not found",
                remedy="give the graph static shapes, or leave out prove=True",
            )
        verdict = "bitwise"
        for k, (old, new) in enumerate(zip(ours, theirs, strict=True)):
            old, new = np.asarray(old), np.asarray(new)
            if old.shape != new.shape or old.dtype != new.dtype:
                is_now, was = f"{new.dtype}{list(new.shape)}", f"{old.dtype}{list(old.shape)}"
                raise GraphError(f"result {k} of the replacement is {is_now}, not {was}", where=where)
            if np.array_equal(old, new, equal_nan=old.dtype.kind in "fc"):
                continue
            if not _is_near(old, new):
                pairs = zip(match, map(np.asarray, feeds), strict=True)
                shapes = ", ".join(f"{name} {feed.dtype}{list(feed.shape)}" for name, feed in pairs)
                raise GraphError(
                    f"result {k} of the replacement differs from that of the pattern{_by_how_much(old, new)}",
                    where=where,
                    cause=f"the sides are not equal, run with {shapes}",
                    remedy="add a condition under which they are",
                )
            verdict = "near"
        return verdict


def _alone(match: Match) -> Graph:
    """The nodes of a match as a graph of their own, whose inputs are what it captures."""
    graph = Graph("match", functions=match.replaced[0].producer.graph.functions)
    captured: dict[Value, Value] = {}
    inputs: list[Value] = []
    for name, value in zip(match, match.captured, strict=True):
        made = add_placeholder(graph, f"input_{name}", value.dtype, value.shape)
        captured.setdefault(value, made)
        inputs.append(made)
    nodes = dict.fromkeys(match.node_of.values())
    nodes.update(dict.fromkeys(v.producer for node in tuple(nodes) for v in node.inputs if v not in captured and is_constant(v.producer)))
    result = CloneResult(graph, {}, captured)
    copy_nodes(order_of(nodes), result, {}, lambda node: graph.unique_name(node.op_type))
    graph.inputs, graph.outputs = inputs, [result.value_of[value] for value in match.replaced]
    return graph


def _run_somehow(match: Match, before: Graph, arrays: list[Any]) -> tuple[list[Any], list[Any], str]:
    """Results of the pattern's side, what was fed, and why it cannot be run."""
    why = ""
    for size in _SIZES:
        random = np.random.default_rng(0)
        feeds: list[Any] = []
        of_value: dict[Value, Any] = {}
        for value, known in zip(match.captured, arrays, strict=True):
            shape = [size] * _RANK if value.shape is None else [size if d is None else d for d in value.shape]
            if value.dtype.itemsize is None or (element_count(tuple(shape)) or 0) > _LARGEST:
                return [], [], f"{value.name} {value.dtype}{format_shape(value.shape)} is too large, or has no random values"
            if value not in of_value:
                of_value[value] = _drawn(random, value.dtype.name, shape) if known is None else known
            feeds.append(of_value[value])
        try:
            return run_side(before, feeds), feeds, ""
        except ArgumentError as error:
            why = error.what
    return [], [], why


def _drawn(random: np.random.Generator, dtype: str, shape: list[int]) -> Any:
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint", "qint", "quint")):
        return random.integers(1, 5, shape).astype(dtype)
    drawn = random.normal(size=shape)
    if dtype.startswith("complex"):
        return (drawn + 1j * random.normal(size=shape)).astype(dtype)
    if dtype == "bfloat16":
        from graphwright.source.tensorflow_import import import_tensorflow

        return drawn.astype(import_tensorflow().bfloat16.as_numpy_dtype)
    return drawn.astype(dtype)


def _is_near(old: Any, new: Any) -> bool:
    if old.dtype.kind not in "fcV" and old.dtype.name != "bfloat16":
        return False
    eps = 2.0**-7 if old.dtype.name == "bfloat16" else min(float(np.finfo(old.dtype).eps) * _ROUNDINGS, _MOST)
    wide = np.complex128 if old.dtype.kind == "c" else np.float64
    old, new = old.astype(wide), new.astype(wide)
    scale = float(np.max(np.abs(old[np.isfinite(old)]), initial=0.0))
    return bool(np.allclose(new, old, rtol=eps, atol=eps * scale * 0.01, equal_nan=True))


def _by_how_much(old: Any, new: Any) -> str:
    if old.dtype.kind not in "fiu":
        return ""
    return f" by up to {float(np.nanmax(np.abs(old.astype(np.float64) - new.astype(np.float64)))):.3g}"
