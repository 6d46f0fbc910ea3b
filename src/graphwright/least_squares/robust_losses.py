"""Losses that grow slower than the square, which reduce the influence of outliers.

With a loss rho and the scale C, the cost is `1/2 * sum(C**2 * rho((f / C)**2))` over the residuals f. Each step solves a linear
least-squares problem with the exact gradient of that cost and the Gauss-Newton approximation of its Hessian, including the second
derivative of rho (B. Triggs, P. McLauchlan, R. Hartley, A. Fitzgibbon: Bundle adjustment, a modern synthesis, 1999, section 4): row i of
the Jacobian times `sqrt(rho' + 2 rho'' z)`, the residual times `rho' / sqrt(rho' + 2 rho'' z)`, with z = (f / C)**2. The second derivative
is left out if the root's argument is not positive (beyond the inflection of rho).
The losses and their names are those of `scipy.optimize.least_squares`.
"""

import importlib
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.least_squares.arguments import check_positive

tf: Any = importlib.import_module("tensorflow")

LossName = Literal["linear", "huber", "soft_l1", "cauchy", "arctan"]
Rho = Callable[[Any], tuple[Any, Any, Any]]
"""z = (f / C)**2 -> rho(z), rho'(z), rho''(z), elementwise."""


def _huber(z: Any) -> tuple[Any, Any, Any]:
    inside = z <= 1.0
    root = tf.sqrt(tf.where(inside, tf.ones_like(z), z))
    return tf.where(inside, z, 2.0 * root - 1.0), 1.0 / root, tf.where(inside, tf.zeros_like(z), -0.5 / root**3)


def _soft_l1(z: Any) -> tuple[Any, Any, Any]:
    root = tf.sqrt(1.0 + z)
    return 2.0 * z / (1.0 + root), 1.0 / root, -0.5 / root**3  # 2 * (root - 1), without its cancellation


def _cauchy(z: Any) -> tuple[Any, Any, Any]:
    return tf.math.log1p(z), 1.0 / (1.0 + z), -1.0 / (1.0 + z) ** 2


def _arctan(z: Any) -> tuple[Any, Any, Any]:
    bend = 1.0 + z**2
    return tf.atan(z), 1.0 / bend, -2.0 * z / bend**2


_LOSSES: dict[str, Rho] = {"huber": _huber, "soft_l1": _soft_l1, "cauchy": _cauchy, "arctan": _arctan}


class RobustLoss:
    """A loss and its scale: the cost of residuals, and the weights of a linearized problem.

    Args:
        loss: `"linear"` (the square), `"huber"`, `"soft_l1"`, `"cauchy"`, `"arctan"`, or a function from `z = (f / scale)**2` to the loss,
            its first and its second derivative, elementwise.
        scale: residuals below it count as inliers, in the unit of the residuals.
    """

    def __init__(self, loss: LossName | Rho = "linear", scale: float = 1.0) -> None:
        if not callable(loss) and loss not in get_args(LossName):
            raise ArgumentError(f"the loss {loss!r}", argument="loss", remedy=f"one of {', '.join(get_args(LossName))}, or a function")
        check_positive("loss_scale", scale)
        self.name = loss if isinstance(loss, str) else getattr(loss, "__name__", "own loss")
        self._rho = loss if callable(loss) else _LOSSES.get(loss)
        self._scale = float(scale)

    def cost(self, residuals: Any) -> Any:
        if self._rho is None:
            return tf.nn.l2_loss(residuals)
        return 0.5 * self._scale**2 * tf.reduce_sum(self._evaluated(tf.square(residuals / self._scale))[0])

    def _evaluated(self, z: Any) -> tuple[Any, Any, Any]:
        assert self._rho is not None
        values: Any = self._rho(z)
        if not isinstance(values, tuple | list) or len(values) != 3:  # pyright: ignore[reportUnknownArgumentType]
            raise ArgumentError(
                f"the loss {self.name!r} does not return three tensors",
                argument="loss",
                remedy="return the loss, its first and its second derivative in z = (f / loss_scale)**2",
            )
        first, *others = (tf.convert_to_tensor(part, z.dtype) for part in values)  # pyright: ignore[reportUnknownVariableType]
        return (first, *others)

    def weights(self, residuals: Any) -> tuple[Any, Any]:
        """Return the weights of the Jacobian's rows and of the residuals, shaped like the residuals; None for the linear loss."""
        if self._rho is None:
            return None, None
        z = tf.square(residuals / self._scale)
        _, first, second = self._evaluated(z)
        tiny = float(np.finfo(residuals.dtype.as_numpy_dtype).eps)
        bent = first + 2.0 * z * second
        row = tf.sqrt(tf.where(bent > tiny, bent, tf.maximum(first, tiny)))
        return row, first / row
