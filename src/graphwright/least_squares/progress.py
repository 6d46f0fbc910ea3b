"""The steps of a fit, as a callback sees them."""

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
    """One step of a fit, accepted or refused.

    Attributes:
        iteration: number of the step, from 1.
        cost: half the sum of squares, or of the loss, after the step.
        gradient_norm: largest element of the gradient after the step, of parameters that are not held at a bound.
        step_norm: length of the change of all parameters; 0 for a refused step.
        damping: of this step, relative to squared column norms.
        params: after the step, in the structure of the start: NumPy arrays, which the callback may keep.
    """

    iteration: int
    cost: float
    gradient_norm: float
    step_norm: float
    damping: float
    accepted: bool
    params: Any


Callback = Callable[[LeastSquaresStep], Any]
"""Returns True to end the fit, None or False to continue."""


def watcher(callback: Callback, layout: ParameterLayout, raised: list[Exception]) -> Callable[..., Any]:
    """Return a function of the tensors of a `LeastSquaresStep`, the parameters as a vector, that returns whether to stop.

    Args:
        raised: collects exceptions of the callback, since TensorFlow forwards only their text.
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
