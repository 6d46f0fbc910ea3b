"""`ReversibleBlock`: two residual functions whose inputs can be computed from the outputs."""

from __future__ import annotations

import importlib
from typing import Any

from graphwright.reversible.couplings import Coupling, as_coupling
from graphwright.reversible.engine import BackwardRun, ForwardRun, InverseRun, Streams
from graphwright.reversible.residual import ResidualFunction
from graphwright.reversible.stream_layer import StreamLayer

keras: Any = importlib.import_module("keras")


@keras.saving.register_keras_serializable(package="graphwright")
class ReversibleBlock(StreamLayer):
    """A residual block: `y1 = x1 + f(x2)`, `y2 = x2 + g(y1)`. Its inverse: `x2 = y2 - g(y1)`, `x1 = y1 - f(x2)`.

    In training the block stores its outputs only. The backward pass rebuilds the inputs from them. Put consecutive blocks into a
    `ReversibleSequence`, which frees the inputs of all of them.

    Args:
        f: a Keras layer or model, or another callable of one tensor. Its result must have the shape of the first stream (twice the
            channels with `coupling="affine"`). It may contain batch normalization, dropout, or losses by `add_loss`.
        g: likewise, for the second stream.
        coupling: `"additive"`, `"affine"`, or a custom `Coupling`.
        axis: the channel axis, along which one input tensor is split into the two streams.
        stream_dtype: dtype of the streams. None selects the compute dtype, or float32 under a mixed policy, since the rebuilding
            error grows with each block (see `check_inverse`).
        **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Input: one tensor with an even number of channels, or a pair of tensors. Output: the same form, shape and dtype.

    Source: A. Gomez, M. Ren, R. Urtasun, R. Grosse, "The Reversible Residual Network: Backpropagation Without Storing
    Activations", NeurIPS 2017, eq. 6 and 7.

    >>> import numpy as np
    >>> block = ReversibleBlock(keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(2, activation="tanh"))
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    >>> np.round(block.inverse(block(x)), 5)
    array([[1., 2., 3., 4.]], dtype=float32)
    """

    def __init__(
        self, f: Any, g: Any, coupling: str | Coupling = "additive", axis: int = -1, *, stream_dtype: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(axis=axis, stream_dtype=stream_dtype, **kwargs)
        self.f, self.g = f, g
        self.coupling = as_coupling(coupling)
        self._coupling_argument = coupling
        self._residuals = (
            ResidualFunction(f, f"argument 'f' of {self.name!r}"),
            ResidualFunction(g, f"argument 'g' of {self.name!r}"),
        )

    @property
    def functions(self) -> list[ResidualFunction]:
        return list(self._residuals)

    def build_streams(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        first, second = shapes
        for function, source, target in zip(self._residuals, (second, first), (first, second), strict=True):
            result_shape = list(target)
            if result_shape[self.axis] is not None:
                result_shape[self.axis] *= self.coupling.channel_factor
            function.build(tuple(source), self.stream_dtype, tuple(result_shape))
        return shapes

    def stream_forward(self, x: Streams, run: ForwardRun) -> Streams:
        """Return the streams after the layer."""
        x1, x2 = x
        f, g = self._residuals
        y1 = self.coupling.forward(x1, run(f, x2), self.axis)
        return y1, self.coupling.forward(x2, run(g, y1), self.axis)

    def stream_inverse(self, y: Streams, run: InverseRun) -> Streams:
        """Return the streams before the layer."""
        y1, y2 = y
        f, g = self._residuals
        x2 = self.coupling.inverse(y2, run(g, y1), self.axis)
        return self.coupling.inverse(y1, run(f, x2), self.axis), x2

    def stream_backward(self, y: Streams, dy: Streams, run: BackwardRun, x: Streams | None) -> tuple[Streams, Streams]:
        """Call g once and f once: each call rebuilds a stream and gives a gradient."""
        (y1, y2), (dy1, dy2), (f, g) = y, dy, self._residuals
        p, pull = run(g, y1)
        x2 = x[1] if x else self.coupling.inverse(y2, p, self.axis)
        (dy2,) = run.delayed([dy2], [x2])  # frees p before the gradient of p is computed
        dx2, dp = self.coupling.pullback(x2, p, dy2, self.axis)
        dy1 += pull(dp)
        x2, y1 = run.gate(x2, y1, after=[dy1])
        p, pull = run(f, x2)
        x1 = x[0] if x else self.coupling.inverse(y1, p, self.axis)
        (dy1,) = run.delayed([dy1], [x1])
        dx1, dp = self.coupling.pullback(x1, p, dy1, self.axis)
        return (x1, x2), (dx1, dx2 + pull(dp))

    def get_config(self) -> dict[str, Any]:
        parts = {"f": self.f, "g": self.g, "coupling": self._coupling_argument}
        return super().get_config() | {name: keras.saving.serialize_keras_object(part) for name, part in parts.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ReversibleBlock:
        read = keras.saving.deserialize_keras_object
        return cls(**(config | {name: read(config[name]) for name in ("f", "g", "coupling")}))
