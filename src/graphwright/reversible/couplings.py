"""Couplings: how a residual function changes one stream of a reversible block.

A *coupling* merges a stream `x` with `p`, the result of a residual function of the *other* stream, into `y`, so that `x`
can be had back from `y` and `p`. `additive`: `y = x + p`. `affine`: `p` holds two halves along the axis of the channels,
`y = x * scale + shift` with `scale = exp(tanh(half))`, which lies between 1/e and e, so that neither direction explodes.

Sources: L. Dinh, D. Krueger, Y. Bengio, "NICE: Non-linear Independent Components Estimation", 2014, eq. 9 and 10 (additive,
multiplicative and affine coupling); A. Gomez et al., "The Reversible Residual Network", 2017, eq. 6 (additive).
"""

from __future__ import annotations

import importlib
from typing import Any

from graphwright.errors import ArgumentError

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")


class Coupling:
    """Base of couplings of your own: write `forward` and `inverse`, and `channel_factor` where the function must give more.

    Both are traced by TensorFlow and must be differentiable by it. Register the class with
    `keras.saving.register_keras_serializable` to save models that use it; a coupling with arguments needs `get_config`.

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
    """How many times the channels of its stream the residual function must give."""

    def forward(self, x: Any, p: Any, axis: int) -> Any:
        """The new stream, of the shape of `x`."""
        raise NotImplementedError

    def inverse(self, y: Any, p: Any, axis: int) -> Any:
        """The `x` for which `forward(x, p, axis)` is `y`."""
        raise NotImplementedError

    def pullback(self, x: Any, p: Any, dy: Any, axis: int) -> tuple[Any, Any]:
        """The gradients with respect to `x` and `p`, given that of `y`."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((x, p))
            y = self.forward(x, p, axis)
        return tape.gradient(y, (x, p), output_gradients=dy, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal coupling."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Coupling:
        """The coupling that `get_config` describes."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="graphwright")
class AdditiveCoupling(Coupling):
    """`y = x + p`; its gradient needs no tape."""

    def forward(self, x: Any, p: Any, axis: int) -> Any:  # noqa: ARG002
        """`x + p`."""
        return x + p

    def inverse(self, y: Any, p: Any, axis: int) -> Any:  # noqa: ARG002
        """`y - p`."""
        return y - p

    def pullback(self, x: Any, p: Any, dy: Any, axis: int) -> tuple[Any, Any]:  # noqa: ARG002
        """`dy` for both."""
        return dy, dy


@keras.saving.register_keras_serializable(package="graphwright")
class AffineCoupling(Coupling):
    """`y = x * exp(tanh(s)) + t`, with `s` and `t` the halves of `p` along the axis."""

    channel_factor = 2

    def forward(self, x: Any, p: Any, axis: int) -> Any:
        """`x` times the scale plus the shift."""
        log_scale, shift = tf.split(p, 2, axis)
        return x * tf.exp(tf.tanh(log_scale)) + shift

    def inverse(self, y: Any, p: Any, axis: int) -> Any:
        """`y` minus the shift, over the scale."""
        log_scale, shift = tf.split(p, 2, axis)
        return (y - shift) * tf.exp(-tf.tanh(log_scale))


_BY_NAME: dict[str, type[Coupling]] = {"additive": AdditiveCoupling, "affine": AffineCoupling}


def coupling_named(coupling: str | Coupling) -> Coupling:
    """The coupling that a user means.

    Raises:
        ArgumentError: neither a known name nor a `Coupling`.
    """
    if isinstance(coupling, Coupling):
        return coupling
    if isinstance(coupling, str) and coupling in _BY_NAME:  # pyright: ignore[reportUnnecessaryIsInstance]
        return _BY_NAME[coupling]()
    raise ArgumentError(
        f"coupling={coupling!r} was given",
        argument="coupling",
        remedy=f"give one of {', '.join(map(repr, _BY_NAME))}, or an object of a class derived from graphwright.train.Coupling",
    )


def coupling_config(coupling: Coupling) -> Any:
    """What `get_config` of a layer says of its coupling: the name, or the serialized object."""
    for name, kind in _BY_NAME.items():
        if type(coupling) is kind:
            return name
    return keras.saving.serialize_keras_object(coupling)


def coupling_from_config(config: Any) -> str | Coupling:
    """The coupling of `coupling_config`."""
    return config if isinstance(config, str) else keras.saving.deserialize_keras_object(config)
