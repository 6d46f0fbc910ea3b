"""Couplings: how a residual function changes one stream of a reversible block.

A *coupling* merges a stream `x` with `p`, the result of a residual function of the *other* stream, into `y`, such that `x` can be
computed from `y` and `p`. The scale of the affine coupling is between 1/e and e, so neither direction explodes.

Sources: L. Dinh, D. Krueger, Y. Bengio, "NICE: Non-linear Independent Components Estimation", 2014, eq. 9 and 10; A. Gomez et al., "The
Reversible Residual Network", 2017, eq. 6 (additive).
"""

from __future__ import annotations

import importlib
from typing import Any

from graphwright.errors import ArgumentError

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")


class Coupling:
    """Base class of custom couplings: define `forward` and `inverse`.

    Set `channel_factor` if the residual function must return more channels than its stream has. Both methods must be differentiable
    TensorFlow code. Register the class with `keras.saving.register_keras_serializable` to save models that use it. A coupling with
    arguments also needs `get_config`.

    >>> class Difference(Coupling):
    ...     def forward(self, x, p, axis):
    ...         return p - x
    ...     def inverse(self, y, p, axis):
    ...         return p - y
    >>> x, p = tf.constant([1.0, 2.0]), tf.constant([5.0, 5.0])
    >>> coupling = Difference()
    >>> coupling.inverse(coupling.forward(x, p, -1), p, -1).numpy()
    array([1., 2.], dtype=float32)
    """

    channel_factor: int = 1
    """Channels of the residual function's result, relative to the channels of its stream."""

    def forward(self, x: Any, p: Any, axis: int) -> Any:
        """Return the new stream, with the shape of `x`."""
        raise NotImplementedError

    def inverse(self, y: Any, p: Any, axis: int) -> Any:
        """Return the `x` for which `forward(x, p, axis)` is `y`."""
        raise NotImplementedError

    def pullback(self, x: Any, p: Any, dy: Any, axis: int) -> tuple[Any, Any]:
        """Return the gradients with respect to `x` and `p` for the gradient `dy` of `y`."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((x, p))
            y = self.forward(x, p, axis)
        return tape.gradient(y, (x, p), output_gradients=dy, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Coupling:
        """Return a coupling with these arguments."""
        return cls(**config)


class AdditiveCoupling(Coupling):
    """`y = x + p`. Its gradient needs no tape."""

    def forward(self, x: Any, p: Any, axis: int) -> Any:  # noqa: ARG002
        return x + p

    def inverse(self, y: Any, p: Any, axis: int) -> Any:  # noqa: ARG002
        return y - p

    def pullback(self, x: Any, p: Any, dy: Any, axis: int) -> tuple[Any, Any]:  # noqa: ARG002
        return dy, dy


class AffineCoupling(Coupling):
    """`y = x * exp(tanh(s)) + t`, with `s` and `t` the halves of `p` along the axis."""

    channel_factor = 2

    def forward(self, x: Any, p: Any, axis: int) -> Any:
        log_scale, shift = tf.split(p, 2, axis)
        return x * tf.exp(tf.tanh(log_scale)) + shift

    def inverse(self, y: Any, p: Any, axis: int) -> Any:
        log_scale, shift = tf.split(p, 2, axis)
        return (y - shift) * tf.exp(-tf.tanh(log_scale))


_BY_NAME: dict[str, type[Coupling]] = {"additive": AdditiveCoupling, "affine": AffineCoupling}


def as_coupling(coupling: str | Coupling) -> Coupling:
    """Return the coupling with this name, or the `Coupling` itself."""
    if isinstance(coupling, Coupling):
        return coupling
    if isinstance(coupling, str) and coupling in _BY_NAME:  # pyright: ignore[reportUnnecessaryIsInstance]
        return _BY_NAME[coupling]()
    raise ArgumentError(
        f"coupling={coupling!r} was given",
        argument="coupling",
        remedy=f"give one of {', '.join(map(repr, _BY_NAME))}, or an object of a class derived from graphwright.train.Coupling",
    )
