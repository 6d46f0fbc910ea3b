"""`batch_formulas`: what a step costs as functions of its batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from graphwright.analyze.directions import Direction
from graphwright.analyze.flop_tally import UNKNOWN_DIRECTIONS
from graphwright.analyze.formula import Formula
from graphwright.analyze.formula_search import find_formula, formula_through
from graphwright.costs.sized_step import TRACED_FIRST, Feeds, SizedStep
from graphwright.costs.xla_peak import by_operation
from graphwright.errors import GraphwrightError
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.memory.planning import HOW_PEAK_TRACED
from graphwright.report.batch_results import BatchFormulas
from graphwright.step.flatten import counted_graph
from graphwright.step.summary import count_executed
from graphwright.step.targets import Mode, about_a_step

_LAST, _EVALUATIONS = 512, 64
_LAST_TRACED, _EVALUATIONS_TRACED = 64, 16  # where each evaluation traces the step
_FLOPS_AT = (1, *TRACED_FIRST)
_MORE_FLOPS_AT = (2, 11, 13)
_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "optimizer")
_HOW = {
    "activation bytes": "what is live at the peak beside what is resident: variables, inputs and constants",
    "residual bytes": "the sum of all forward values that the backward pass reads, from 4 KiB on",
    "FLOPs": "counted per operation, a multiply-add as two; by dataflow: backward is what depends on the gradient of the loss",
}


@garbage_collection_paused()
@about_a_step
def batch_formulas(
    target: Any, feeds: Feeds = None, inputs: Any = None, outputs: Iterable[Any] | Any = None, *, mode: Mode = "auto"
) -> BatchFormulas:
    """What a step costs as functions of its batch size: peak, resident and activation bytes, FLOPs.

    The figures are evaluated at several sizes; polynomials in pieces are laid through them, and checked at other sizes (`how` of each
    formula says which). The step is traced for a few sizes only.

    Args:
        feeds: shape (or `tf.TensorSpec`) by argument name, None where the batch size goes; if it goes nowhere, it takes
            the place of all first dimensions. Or a function from the batch size to feeds. Not needed where the target
            says what is open.

    Returns:
        `BatchFormulas`, which print themselves; each formula is called with a batch size.

    Raises:
        ArgumentError: no dimension of the inputs is open, or the feeds do not fit.
        UnknownShapeError: a dimension other than the batch size is not known.
        GraphwrightError: the step cannot be traced at a size, which the message names.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: tf.reduce_sum(tf.exp(tf.sin(x)) * tf.cos(x)))
    >>> formulas = batch_formulas(step, {"x": (None, 1024, 256)})
    >>> print(formulas.peak_bytes)
    3 MiB * batch
    >>> formulas.peak_bytes(10) == 30 * 2**20
    True
    """
    sized = SizedStep(target, feeds, mode, inputs=inputs, outputs=outputs)
    shapes = sized.open_feeds()
    peak = peak_formula(sized)
    flops, unknown, why = _flops(sized)
    how = {"peak bytes": HOW_PEAK_TRACED, **_HOW, "shapes": sized.how, "formulas": f"peak: {peak.how}"}
    how = by_operation(how, sized.traced(max(sized.traced_sizes)), "peak bytes")
    if why:
        how["FLOPs"] = why
    elif flops["forward"] is not None:
        how["FLOPs"] += f"; {flops['forward'].how}"
    return BatchFormulas(
        name=sized.name,
        feeds=shapes,
        order="traced",
        peak_bytes=peak,
        resident_bytes=_formula(sized, sized.resident_bytes),
        activation_bytes=_formula(sized, sized.activation_bytes),
        residual_bytes=_formula(sized, sized.residual_bytes),
        flops_forward=flops["forward"],
        flops_backward=flops["backward"],
        flops_optimizer=flops["optimizer"],
        unknown_flop_ops=unknown,
        how=how,
    )


def peak_formula(sized: SizedStep) -> Formula:
    """The peak in the traced order as a formula; checked by tracing the step at the largest size that was looked at."""
    found = _formula(sized, sized.peak_bytes)
    if sized.is_bound and not sized.is_confirmed(_LAST):
        found = _formula(sized, sized.peak_bytes)
    return found


def _formula(sized: SizedStep, figure: Callable[[int], int]) -> Formula:
    hints = sized.hints(_LAST)
    if sized.is_bound:
        return find_formula(figure, _LAST, hints=hints, unit="bytes", max_evaluations=_EVALUATIONS)
    return find_formula(figure, _LAST_TRACED, unit="bytes", max_evaluations=_EVALUATIONS_TRACED)


def _flops(sized: SizedStep) -> tuple[dict[Direction, Formula | None], tuple[str, ...], str]:
    """FLOPs by direction, op types that could not be counted, and in words why there is no formula, if there is none."""
    counted: dict[int, tuple[dict[Direction, float], tuple[str, ...]]] = {}
    nothing: dict[Direction, Formula | None] = dict.fromkeys(_DIRECTIONS)
    found = nothing
    for sizes in (_FLOPS_AT, _MORE_FLOPS_AT):
        try:
            counted |= {size: _flops_at(sized, size) for size in sizes}
        except GraphwrightError as error:
            return nothing, (), f"not counted: {error.what}"
        if any(math.isnan(flops["forward"]) for flops, _ in counted.values()):
            return nothing, (), UNKNOWN_DIRECTIONS
        found: dict[Direction, Formula | None] = {
            name: formula_through({size: flops[name] for size, (flops, _) in counted.items()}) for name in _DIRECTIONS
        }
        if None not in found.values():
            break
    unknown = tuple(sorted({op_type for _, missing in counted.values() for op_type in missing}))
    failed = [name for name, formula in found.items() if formula is None]
    return found, unknown, f"no polynomial of the batch size gives those of: {', '.join(failed)}" if failed else ""


def _flops_at(sized: SizedStep, size: int) -> tuple[dict[Direction, float], tuple[str, ...]]:
    _, tally = count_executed(counted_graph(sized.traced(size))[0])
    return {name: tally.whole.flops[name] for name in _DIRECTIONS}, tuple(tally.unknown_reason)
