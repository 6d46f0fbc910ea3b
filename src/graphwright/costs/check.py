"""`check`: hold a step against limits and against its earlier costs; for pipelines."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from graphwright.analyze.device_models import HERE
from graphwright.costs.baseline import read_costs, write_costs
from graphwright.costs.compare import compare_costs, step_costs
from graphwright.errors import ArgumentError
from graphwright.plan.budget import Budget
from graphwright.report.comparison import CheckResult, Finding, StepCosts
from graphwright.report.peak_prediction import Order
from graphwright.step.targets import Feed, Mode, about_a_step

Tolerance = float | str | Mapping[str, float | str]
GUARDED: tuple[str, ...] = ("peak_bytes", "resident_bytes", "parameters", "total_flops", "bytes_moved", "nodes")
"""The figures that are held against a baseline."""
_PREFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_COUNT = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgtp]?)(?:flops?)?\s*", re.IGNORECASE)
_SHORT = {"peak": "peak_bytes", "resident": "resident_bytes", "flops": "total_flops", "bytes": "bytes_moved"}


@about_a_step
def check(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    max_peak: int | str | None = None,
    max_flops: float | str | None = None,
    max_parameters: int | str | None = None,
    max_nodes: int | str | None = None,
    baseline: str | Path | StepCosts | None = None,
    tolerance: Tolerance = 0.0,
    write_baseline: str | Path | None = None,
    mode: Mode = "auto",
    batch: int | None = None,
    device: str = HERE,
    order: Order = "executor",
) -> CheckResult:
    """Hold the costs of a step against limits, and against a stored baseline.

    The figures are predicted from the graph, and no step runs. The peak is the one of TensorFlow's executor. `max_peak` limits the upper
    end of its range, see `predict_peak`; a baseline is compared with the peak itself.

    Args:
        max_peak: the most bytes, as an int or as text such as "4GiB".
        max_flops: the most FLOPs of a step, all directions together, as a number or as text such as "20G".
        max_parameters: the most elements of weights, see `count_parameters`, as a number or as text such as "30M".
        baseline: a file of an earlier `write_baseline`; figures that have grown since fail.
        tolerance: allowed growth: a share such as 0.02 or "2%", or a mapping from figures ("peak", "flops", "parameters", "resident",
            "bytes", "nodes") to shares.
        write_baseline: a path for today's figures, written in any case; `baseline` is read before.

    Returns:
        A `CheckResult`: true if all is within the limits. It prints itself.

    Raises:
        ArgumentError: a limit or a tolerance cannot be read, or the baseline has other input shapes.
        FileFormatError: the baseline is damaged, or of another version; the message names file and field.
        UnknownShapeError: a dimension is unknown; the message names the argument to bind.

    >>> import tensorflow as tf
    >>> product = tf.function(lambda a, b: a @ b)
    >>> result = check(product, feeds={"a": (256, 256), "b": (256, 256)}, max_flops="20M", max_peak="1MiB")
    >>> result.passed, [finding.figure for finding in result.findings if not finding.passed]
    (False, ['total_flops'])
    """
    limits = _limits(max_peak, max_flops, max_parameters, max_nodes)
    shares = _tolerances(tolerance)
    if not limits and baseline is None and write_baseline is None:
        raise ArgumentError(
            "there is nothing to check against",
            argument="max_peak",
            cause="a check without a limit and without a baseline always passes",
            remedy="give max_peak, max_flops, max_parameters, max_nodes or baseline; or write_baseline, to keep today's figures for later",
        )
    before = None if baseline is None else baseline if isinstance(baseline, StepCosts) else read_costs(baseline)
    costs = step_costs(target, feeds, inputs, outputs, mode=mode, batch=batch, device=device, order=order)
    findings = [Finding(name, costs.figures[name], limit) for name, limit in limits.items()]
    if costs.peak_high_bytes > costs.figures["peak_bytes"]:
        findings = [replace(f, amount=costs.peak_high_bytes, is_upper_end=True) if f.figure == "peak_bytes" else f for f in findings]
    comparison = None
    if before is not None:
        _check_shapes(before, costs, baseline)
        comparison = compare_costs(before, costs)
        for name in GUARDED:
            was = before.figures[name]
            findings.append(Finding(name, costs.figures[name], math.floor(was * (1 + shares[name])), was))
    unknown = [f"{name}: {costs.how[name]}" for name in ("peak", "FLOPs") if math.isnan(costs.figures[_SHORT[name.lower()]])]
    if unknown and write_baseline is not None:
        remedy = "give example inputs, for which it is known"
        raise ArgumentError(f"a figure is unknown and cannot be stored: {unknown[0]}", argument="write_baseline", remedy=remedy)
    written = None if write_baseline is None else write_costs(costs, write_baseline)
    path = Path(baseline) if isinstance(baseline, str | Path) else None
    return CheckResult(costs, tuple(findings), comparison, (*unknown, *_warnings(costs, before, limits)), path, written)


def parse_count(value: object, argument: str) -> float:
    """Return a number of FLOPs, parameters or nodes, given as a number or as text with a decimal prefix.

    >>> parse_count("20G", "max_flops"), parse_count("1.5 TFLOP", "max_flops"), parse_count(300, "max_nodes")
    (20000000000, 1500000000000, 300)
    """
    match = _COUNT.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        amount = Fraction(match[1]) * _PREFIXES[match[2].upper()]
        return int(amount) if amount.denominator == 1 else float(amount)
    if not isinstance(value, str | bool) and isinstance(value, numbers.Real) and 0 <= float(value) < math.inf:
        return int(float(value)) if float(value).is_integer() else float(value)
    raise ArgumentError(
        f"{value!r} is not a limit", argument=argument, remedy='give a number, or text such as "20G" (20 thousand million) or "30M"'
    )


def _limits(max_peak: object, max_flops: object, max_parameters: object, max_nodes: object) -> dict[str, float]:
    limits: dict[str, float] = {}
    if max_peak is not None:
        try:
            limits["peak_bytes"] = Budget.read(max_peak).nbytes
        except ArgumentError as error:
            raise ArgumentError(
                f"{max_peak!r} is not a limit: {error.what}", argument="max_peak", remedy='give bytes, or text such as "4GiB"'
            ) from error
    counts = {"total_flops": ("max_flops", max_flops), "parameters": ("max_parameters", max_parameters), "nodes": ("max_nodes", max_nodes)}
    limits |= {name: parse_count(value, argument) for name, (argument, value) in counts.items() if value is not None}
    return limits


def _tolerances(tolerance: Tolerance) -> dict[str, float]:
    tolerances: Mapping[str, float | str] = tolerance if isinstance(tolerance, Mapping) else dict.fromkeys(GUARDED, tolerance)
    shares = dict.fromkeys(GUARDED, 0.0)
    for key, value in tolerances.items():
        name = _SHORT.get(key, key)
        if name not in shares:
            known = ", ".join(short for short in (*_SHORT, "parameters", "nodes"))
            raise ArgumentError(f"there is no figure {key!r}", argument="tolerance", remedy=f"there are {known}")
        shares[name] = _share(value)
    return shares


def _share(value: float | str) -> float:
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share < math.inf:
        raise ArgumentError(f"{value!r} is not a tolerance", argument="tolerance", remedy='give a share such as 0.02, or "2%"')
    return share


def _check_shapes(before: StepCosts, now: StepCosts, baseline: object) -> None:
    if dict(before.feeds) == dict(now.feeds):
        return
    differing = [name for name in {**before.feeds, **now.feeds} if before.feeds.get(name) != now.feeds.get(name)]
    name = differing[0]
    raise ArgumentError(
        f"input {name!r} has the shape {now.feeds.get(name, 'of no input')}, and had {before.feeds.get(name, 'none')} in the baseline",
        where=f"baseline {baseline}" if isinstance(baseline, str | Path) else "argument 'baseline'",
        cause="the baseline was written for other inputs, or of another model",
        remedy="give the same feeds or batch size, or write the baseline again",
    )


def _warnings(costs: StepCosts, before: StepCosts | None, limits: Mapping[str, float]) -> list[str]:
    warnings: list[str] = []
    guards_flops = "total_flops" in limits or before is not None
    new = [name for name in costs.unknown_flop_ops if before is None or name not in before.unknown_flop_ops]
    if guards_flops and new:
        warnings.append(f"FLOPs of {', '.join(new)} are not known and in no figure; graphwright.register_flops gives an op type a rule")
    if "example inputs" in costs.how.get("sizes", ""):
        warnings.append(f"sizes: {costs.how['sizes']}")
    if before is not None and before.name != costs.name:
        warnings.append(f"the baseline is of {before.name!r}, this is {costs.name!r}")
    return warnings
