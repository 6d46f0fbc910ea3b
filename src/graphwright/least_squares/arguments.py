"""Checks of arguments; bounds as vectors, data as tensors."""

import importlib
import math
import numbers
from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from graphwright.errors import ArgumentError, in_words
from graphwright.least_squares.parameters import ParameterLayout, labels_of

tf: Any = importlib.import_module("tensorflow")

Bounds = tuple[Any, Any]
"""Lower and upper bounds: numbers, or structures like the parameters."""


def check_choice(name: str, value: str, choices: Any) -> None:
    """Raise if the value is not one of the choices of a `Literal`."""
    if value not in get_args(choices):
        raise ArgumentError(f"{name}={value!r}", argument=name, remedy=f"one of {', '.join(get_args(choices))}")


def is_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def check_positive(name: str, value: float) -> None:
    if not is_finite(value) or value <= 0:
        raise ArgumentError(f"{name}={value!r}", argument=name, remedy="give a positive number")


def check_count(name: str, value: float) -> None:
    if not is_finite(value) or value < 1 or value != int(value):
        raise ArgumentError(f"{name}={value!r}", argument=name, remedy="give a whole number of at least 1")


def check_chunks(method: str, chunk_size: int | None) -> None:
    """Raise if a method that needs all rows at once would get chunks."""
    if chunk_size is not None and method == "dual":
        raise ArgumentError(
            f"chunk_size={chunk_size} with {method!r}",
            argument="chunk_size",
            cause="it needs all rows at once",
            remedy='"cholesky" or "cg" take chunks',
        )


def as_data(value: Any, dtype: Any) -> Any:
    """Return a tensor; numbers without a type get the parameters' type."""
    if hasattr(value, "dtype"):
        return tf.convert_to_tensor(value)
    array = np.asarray(value)
    return tf.convert_to_tensor(array, dtype if array.dtype.kind == "f" else None)


def bound_vectors(bounds: Bounds | None, layout: ParameterLayout) -> tuple[Any, Any] | None:
    """Return lower and upper bounds as vectors (n,), or None if all are infinite."""
    if bounds is None:
        return None
    pair: Any = bounds
    if not isinstance(pair, tuple | list) or len(bounds) != 2:
        raise ArgumentError(f"bounds={bounds!r}", argument="bounds", remedy="give a pair of lower and upper bounds")
    sides: list[Any] = []
    for name, side, missing in (("lower", bounds[0], -np.inf), ("upper", bounds[1], np.inf)):
        leaves = _like_parameters(missing if side is None else side, name, layout)
        parts: list[Any] = []
        for leaf, shape, label in zip(leaves, layout.shapes, layout.labels, strict=True):
            try:
                parts.append(np.broadcast_to(np.asarray(leaf, layout.dtype.as_numpy_dtype), shape))
            except (TypeError, ValueError, NotImplementedError) as error:  # the last: a tensor of a graph
                raise ArgumentError(
                    f"{name} bounds {leaf!r} for {label} of shape {shape}",
                    argument="bounds",
                    remedy="give numbers, or arrays shaped like the parameters",
                ) from error
        sides.append(np.concatenate([np.reshape(part, -1) for part in parts]))
    lower, upper = sides
    wrong = np.flatnonzero(~(lower < upper))
    if len(wrong):
        i = int(wrong[0])
        raise ArgumentError(
            f"bounds {lower[i]} and {upper[i]} of {layout.element_name(i)}",
            argument="bounds",
            remedy="give lower bounds below upper bounds; a constant need not be a parameter",
        )
    if np.isinf(lower).all() and np.isinf(upper).all():
        return None
    return tf.constant(lower), tf.constant(upper)


def _like_parameters(side: Any, name: str, layout: ParameterLayout) -> list[Any]:
    if not tf.nest.is_nested(side) and np.ndim(side) == 0:
        return [side] * len(layout.shapes)
    if not tf.nest.is_nested(layout.structure):
        values: Any = side
        return [np.asarray(values)] if isinstance(side, list | tuple) else [values]  # a list of numbers for one vector
    if tuple(labels_of(side, "params")) != layout.labels:
        raise ArgumentError(
            f"{name} bounds of another structure than the parameters",
            argument="bounds",
            remedy=f"give a number, or one entry for each of {', '.join(layout.labels)}",
        )
    return tf.nest.flatten(side)


def check_start(start: Any, bounds: tuple[Any, Any] | None, layout: ParameterLayout) -> None:
    values = start.numpy()
    if not np.isfinite(values).all():
        i = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ArgumentError(f"{layout.element_name(i)} is {values[i]}", argument="params", remedy="start from finite parameters")
    if bounds is None:
        return
    outside = np.flatnonzero((values < bounds[0].numpy()) | (values > bounds[1].numpy()))
    if len(outside):
        i = int(outside[0])
        raise ArgumentError(
            f"{layout.element_name(i)} is {values[i]}, outside its bounds {bounds[0].numpy()[i]} and {bounds[1].numpy()[i]}",
            argument="params",
            remedy="start within the bounds",
        )


def tracing_error(error: Exception, dtype: Any, other_dtypes: set[Any]) -> ArgumentError:
    """Return an error with cause and remedy for a failed trace of the residuals.

    Args:
        other_dtypes: floating-point types of data that differ from the parameters'.
    """
    cause = in_words(error)
    if other_dtypes:
        names = ", ".join(sorted(other.name for other in other_dtypes))
        return ArgumentError(
            f"the residuals of data of type {names} and parameters of type {dtype.name} cannot be traced",
            argument="data",
            cause=cause,
            remedy="make parameters, data and residuals of one type",
        )
    remedy = "call it yourself as residuals(params, *data), with tensors, to see where it fails"
    if "numpy" in cause.lower():
        remedy = "use TensorFlow operations: tf.exp, not np.exp; and see that shapes fit"
    elif "as a Python `bool`" in cause:
        remedy = "use tf.where in place of `if`"
    elif "positional argument" in cause:
        remedy = "let it take the parameters as one argument, then one argument for each entry of `data`"
    return ArgumentError("the residuals cannot be traced", argument="residuals", cause=cause, remedy=remedy)


def start_error(layout: ParameterLayout, residuals: Callable[..., Any], start: Any, data: tuple[Any, ...]) -> ArgumentError:
    values = np.concatenate([np.reshape(part, -1) for part in tf.nest.flatten(residuals(layout.pack(layout.split(start)), *data))])
    wrong = np.flatnonzero(~np.isfinite(values))
    largest = float(np.abs(values).max(initial=0.0))
    if not len(wrong) and largest > np.sqrt(np.finfo(values.dtype).max / len(values)):
        return ArgumentError(
            f"the squares of the residuals, up to {largest:.3g}, are too large for {values.dtype}",
            argument="residuals",
            remedy="give residuals in a larger unit, or start elsewhere",
        )
    if not len(wrong):
        return ArgumentError(
            "the Jacobian is not finite at the start",
            argument="residuals",
            cause="a derivative that is infinite there, for example of a root at zero",
            remedy="start elsewhere",
        )
    return ArgumentError(
        f"{len(wrong)} of {len(values)} residuals are not finite at the start, such as number {wrong[0]}: {values[wrong[0]]}",
        argument="residuals",
        remedy="start where the model can be evaluated",
    )
