"""FLOPs with an open batch size: counted at several sizes, joined to polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter

from graphwright.analyze.formula import Formula, formula_through
from graphwright.costs.counted_graph import Countable, CountedGraph
from graphwright.errors import ErrorCode, UnknownShapeError
from graphwright.report.flop_count import FlopCount, FlopRow

_SIZES = (3, 5, 8)  # odd and even ones, since steps may halve a batch; a batch of one example is often a special case
_MORE_SIZES = (2, *_SIZES, 11)  # where a square or a cube is in it
_FIGURES = ("forward", "backward", "optimizer", "total", "bytes_moved")
_UNKNOWN = {**dict.fromkeys(("forward", "backward", "optimizer", "bytes_moved"), math.nan), "undivided": 0.0}
_SAID = {"total": "FLOPs", "bytes_moved": "bytes moved"}
_NONE = FlopRow("", 0, 0.0, 0.0, 0.0, 0.0)


def count_open(target: Countable, count: Callable[[CountedGraph], FlopCount]) -> FlopCount:
    """Return the figures as polynomials of the batch size, fitted through all sizes but the largest, and checked there."""
    one = count(target.at(1))
    results = {size: count(target.at(size)) for size in _SIZES}
    try:
        return _joined(target, one, results)
    except UnknownShapeError:
        return _joined(target, one, results | {size: count(target.at(size)) for size in _MORE_SIZES if size not in results})


def _joined(target: Countable, one: FlopCount, results: Mapping[int, FlopCount]) -> FlopCount:
    largest = max(results)
    last = results[largest]
    formulas = {name: _fitted(name, {1: one, **results}, attrgetter(name)) for name in _FIGURES if math.isfinite(getattr(last, name))}
    how = f"polynomials through the figures at batch sizes {', '.join(str(s) for s in results if s != largest)}, checked at {largest}"
    special = [f"{getattr(one, name):,.0f} {said}" for name, said in _SAID.items() if formulas[name].at_one is not None]
    if special:
        how += f"; rows and bytes moved hold from 2 on: at 1 there are {' and '.join(special)}"
    branches = {"branches": f"{last.how['branches']}; their figures are those at batch size {largest}"} if last.branches else {}
    return replace(
        last,
        **_UNKNOWN,
        feeds=target.feeds or {},
        per_op_type=_rows(results, lambda r: r.per_op_type),
        per_layer=_rows(results, lambda r: r.per_layer),
        how={**last.how, "formulas": how, **branches},
        loops=_loops(results),
        formulas=formulas,
    )


def _fitted(name: str, results: Mapping[int, FlopCount], figure: Callable[[FlopCount], float]) -> Formula:
    figures = {size: figure(result) for size, result in results.items()}
    formula = formula_through(figures)
    if formula is None:
        listed = ", ".join(f"{value:g} at {size}" for size, value in figures.items())
        raise UnknownShapeError(
            f"{name} is not a polynomial of the batch size: {listed}",
            where=f"target {next(iter(results.values())).name!r}",
            cause="the step computes differently for some sizes",
            remedy="give the batch size: feeds={name: shape}, or batch=...",
            code=ErrorCode.OPEN_BATCH,
        )
    return formula


def _rows(results: Mapping[int, FlopCount], of: Callable[[FlopCount], Mapping[str, FlopRow]]) -> dict[str, FlopRow]:
    rows: dict[str, FlopRow] = {}
    for name, row in of(results[max(results)]).items():
        formula = _fitted(f"the FLOPs of {name!r}", results, lambda result, name=name: of(result).get(name, _NONE).total)
        rows[name] = FlopRow(name, row.ops, **_UNKNOWN, unknown=row.unknown, formula=formula)
    return rows


def _loops(results: Mapping[int, FlopCount]) -> dict[str, str]:
    """Return in words how often each loop runs; as a polynomial if that depends on the batch size."""
    largest = max(results)
    loops: dict[str, str] = {}
    for name, words in results[largest].loops.items():
        texts = [result.loops.get(name, "") for result in results.values()]
        loops[name] = words if len(set(texts)) == 1 else _formula_of(texts, results) or f"{words} at batch size {largest}"
    return loops


def _formula_of(said: list[str], results: Mapping[int, FlopCount]) -> str:
    if not all(words.partition(" ")[2] in ("iteration", "iterations") for words in said):
        return ""
    counts = [float(words.partition(" ")[0].replace(",", "")) for words in said]
    formula = formula_through(dict(zip(results, counts, strict=True)))
    return "" if formula is None else f"{formula} iterations"
