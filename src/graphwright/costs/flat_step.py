"""The graph behind a step, for counting."""

from __future__ import annotations

from collections.abc import Mapping

from graphwright.source.rebuild import is_jit_compiled
from graphwright.step.flatten import FlatStep, flatten
from graphwright.step.targets import Target

_BY_OPERATION = "of the graph, operation by operation; XLA, which compiles the step, fuses operations and has an order of its own"


def flat_step(traced: Target) -> FlatStep:
    """The flat graph of a traced step. One that XLA compiles is the graph that XLA is given.

    Raises:
        UnsupportedError, UnknownShapeError: see `flatten`.
    """
    return flatten(traced.function, traced.shapes_by_position, compiled=is_jit_compiled(traced.function))


def by_operation(how: Mapping[str, str], traced: Target, *keys: str) -> dict[str, str]:
    """How figures were obtained, with what that means where XLA compiles the step.

    Args:
        keys: the figures that XLA's fusions change.
    """
    if not is_jit_compiled(traced.function):
        return dict(how)
    return {**how, **{key: f"{_BY_OPERATION}: {how[key]}" for key in keys}}
