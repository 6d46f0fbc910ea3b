"""What a callback is told after each step of a fit."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.least_squares.parameters import ParameterLayout

tf: Any = importlib.import_module("tensorflow")


@dataclass(frozen=True)
class LeastSquaresStep:
    """One step of a fit, taken or refused.

    Attributes:
        iteration: its number, from 1 on.
        cost: half the sum of squares, or of the loss, after it.
        gradient_norm: the largest element of the gradient after it, of parameters that are not held at a bound.
        step_norm: the length of the change of all parameters; 0 where the step was refused.
        damping: of this step, relative to squared column norms.
        accepted: whether it was taken.
        params: after it, in the structure of the start: NumPy arrays, which are the callback's to keep.
    """

    iteration: int
    cost: float
    gradient_norm: float
    step_norm: float
    damping: float
    accepted: bool
    params: Any


Callback = Callable[[LeastSquaresStep], Any]
"""Returns True to end the fit, None or False to go on."""


def watcher(callback: Callback, layout: ParameterLayout, raised: list[Exception]) -> Callable[..., Any]:
    """A function of the tensors of a `LeastSquaresStep`, the parameters as a vector, that calls back and tells whether to stop.

    Args:
        raised: what the callback raises is put here, since TensorFlow hands on no more than its text.
    """

    def call(iteration: Any, cost: Any, gradient_norm: Any, step_norm: Any, damping: Any, accepted: Any, x: Any) -> Any:
        parts = np.split(np.array(x), np.cumsum(layout.sizes)[:-1])
        params = layout.pack([part.reshape(shape) for part, shape in zip(parts, layout.shapes, strict=True)])
        step = LeastSquaresStep(int(iteration), float(cost), float(gradient_norm), float(step_norm), float(damping), bool(accepted), params)
        try:
            answer = callback(step)
            if type(answer) not in (bool, np.bool_, type(None)):
                raise ArgumentError(
                    f"the callback returned {answer!r}", argument="callback", remedy="return True to stop, None or False to go on"
                )
        except Exception as error:
            raised.append(error)
            raise
        return np.bool_(bool(answer))

    def watch(*tensors: Any) -> Any:
        stop = tf.numpy_function(call, tensors, tf.bool)
        stop.set_shape([])
        return stop

    return watch
