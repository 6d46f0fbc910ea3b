"""`ReversibleBlock`: two residual functions whose inputs can be had back from the outputs."""

from __future__ import annotations

import importlib
from typing import Any

from graphwright.reversible.couplings import Coupling, coupling_config, coupling_from_config, coupling_named
from graphwright.reversible.engine import BackwardRun, ForwardRun, InverseRun, Streams
from graphwright.reversible.residual import ResidualFunction
from graphwright.reversible.stream_layer import StreamLayer

keras: Any = importlib.import_module("keras")


@keras.saving.register_keras_serializable(package="graphwright")
class ReversibleBlock(StreamLayer):
    """`y1 = x1 + f(x2)`, `y2 = x2 + g(y1)`, and back: `x2 = y2 - g(y1)`, `x1 = y1 - f(x2)`.

    In training the block keeps its outputs only; the backward pass rebuilds the inputs from them. Blocks in a row belong
    into a `ReversibleSequence`, which frees the inputs of all of them.

    Args:
        f: a Keras layer or model, or another callable of one tensor. It must give the shape of the first stream (with
            `coupling="affine"` with twice the channels). It may hold batch normalization, dropout, or losses by `add_loss`.
        g: likewise, for the second stream.
        coupling: `"additive"`, `"affine"`, or a `Coupling` of your own.
        axis: the axis of the channels, along which one input tensor is split into the two streams.
        stream_dtype: dtype of the streams inside; None for the compute dtype, or float32 under a mixed policy, since the
            error of rebuilding grows with each block (see `check_inverse`).
        **kwargs: `name`, `dtype` and what else a Keras layer takes.

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
        self.coupling = coupling_named(coupling)
        self._residuals = (
            ResidualFunction(f, f"argument 'f' of {self.name!r}"),
            ResidualFunction(g, f"argument 'g' of {self.name!r}"),
        )

    @property
    def functions(self) -> list[ResidualFunction]:
        return list(self._residuals)

    def build_streams(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        """Build f and g for streams of these shapes."""
        first, second = shapes
        for function, source, target in zip(self._residuals, (second, first), (first, second), strict=True):
            wanted = list(target)
            if wanted[self.axis] is not None:
                wanted[self.axis] *= self.coupling.channel_factor
            function.build(tuple(source), self.stream_dtype, tuple(wanted))
        return shapes

    def stream_forward(self, x: Streams, run: ForwardRun) -> Streams:
        """The streams behind the layer, computed from those before it."""
        x1, x2 = x
        f, g = self._residuals
        y1 = self.coupling.forward(x1, run(f, x2), self.axis)
        return y1, self.coupling.forward(x2, run(g, y1), self.axis)

    def stream_inverse(self, y: Streams, run: InverseRun) -> Streams:
        """The streams before the layer, rebuilt from those behind it."""
        y1, y2 = y
        f, g = self._residuals
        x2 = self.coupling.inverse(y2, run(g, y1), self.axis)
        return self.coupling.inverse(y1, run(f, x2), self.axis), x2

    def stream_backward(self, y: Streams, dy: Streams, run: BackwardRun, x: Streams | None) -> tuple[Streams, Streams]:
        """One call of g and one of f: each gives a value that rebuilds a stream, and a gradient."""
        (y1, y2), (dy1, dy2), (f, g) = y, dy, self._residuals
        p, pull = run(g, y1)
        x2 = x[1] if x else self.coupling.inverse(y2, p, self.axis)
        (dy2,) = run.tied([dy2], [x2])  # so that p is freed before what its gradient needs is made
        dx2, dp = self.coupling.pullback(x2, p, dy2, self.axis)
        dy1 += pull(dp)
        x2, y1 = run.gate(x2, y1, after=[dy1])
        p, pull = run(f, x2)
        x1 = x[0] if x else self.coupling.inverse(y1, p, self.axis)
        (dy1,) = run.tied([dy1], [x1])
        dx1, dp = self.coupling.pullback(x1, p, dy1, self.axis)
        return (x1, x2), (dx1, dx2 + pull(dp))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "f": keras.saving.serialize_keras_object(self.f),
            "g": keras.saving.serialize_keras_object(self.g),
            "coupling": coupling_config(self.coupling),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ReversibleBlock:
        read = keras.saving.deserialize_keras_object
        parsed: dict[str, Any] = {"f": read(config["f"]), "g": read(config["g"]), "coupling": coupling_from_config(config["coupling"])}
        return cls(**(config | parsed))
