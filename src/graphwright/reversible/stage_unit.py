"""`StageUnit`: the first unit of a stage, which changes the shape and so is not reversible."""

import importlib
from typing import Any

from graphwright.reversible.engine import BackwardRun, ForwardRun, InverseRun, Streams, no_inverse
from graphwright.reversible.residual import ResidualFunction
from graphwright.reversible.stream_layer import StreamLayer
from graphwright.reversible.units import Preactivation, Shortcut

keras: Any = importlib.import_module("keras")


@keras.saving.register_keras_serializable(package="graphwright")
class StageUnit(StreamLayer):
    """`y1 = s1(x1) + f(x2)`, `y2 = s2(x2) + g(y1)`, with shortcuts `s1` and `s2` that change the shape.

    A sequence stores its inputs. The backward pass knows `y1` from the next unit, so it can begin with g and needs no result of f:
    neither last convolution runs again.

    Args:
        filters: channels of each resulting stream.
        strides: factor by which images get smaller.
        bottleneck: as in `Preactivation`.
        activate_first: whether f begins with normalization and ReLU.

    Source: the official code of Gomez et al. 2017, `_residual` and `_bottleneck_residual`.

    >>> import numpy as np
    >>> y1, y2 = StageUnit(4, strides=2)((np.ones((1, 8, 8, 2)), np.ones((1, 8, 8, 2))))
    >>> tuple(y1.shape), tuple(y2.shape)
    ((1, 4, 4, 4), (1, 4, 4, 4))
    """

    is_invertible = False

    def __init__(self, filters: int, *, strides: int, bottleneck: bool = False, activate_first: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._options = {"filters": filters, "strides": strides, "bottleneck": bottleneck, "activate_first": activate_first}
        policy = self.dtype_policy
        self.f = Preactivation(filters, strides=strides, bottleneck=bottleneck, activate_first=activate_first, dtype=policy)
        self.g = Preactivation(filters, bottleneck=bottleneck, dtype=policy)
        self.shortcuts = [Shortcut(filters, strides=strides, bottleneck=bottleneck, dtype=policy) for _ in range(2)]
        self._residuals = [ResidualFunction(layer, f"layer {self.name!r}") for layer in (*self.shortcuts, self.f, self.g)]

    @property
    def functions(self) -> list[ResidualFunction]:
        return self._residuals

    def build_streams(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        first, second = shapes
        y1, y2 = self.output_stream_shapes(shapes)
        for function, source, target in zip(self._residuals, (first, second, second, y1), (y1, y2, y1, y2), strict=True):
            function.build(tuple(source), self.stream_dtype, tuple(target))
        return y1, y2

    def output_stream_shapes(self, shapes: tuple[Any, Any]) -> tuple[Any, Any]:
        y1, y2 = (shortcut.compute_output_shape(tuple(shape)) for shortcut, shape in zip(self.shortcuts, shapes, strict=True))
        return y1, y2

    def stream_forward(self, x: Streams, run: ForwardRun) -> Streams:
        s1, s2, f, g = self._residuals
        of_x1, of_x2 = run(s1, x[0]), run(s2, x[1])
        y1 = of_x1 + run(f, x[1])
        return y1, of_x2 + run(g, y1)

    def stream_inverse(self, y: Streams, run: InverseRun) -> Streams:  # noqa: ARG002
        raise no_inverse(self.name)

    def stream_backward(self, y: Streams, dy: Streams, run: BackwardRun, x: Streams | None) -> tuple[Streams, Streams]:
        assert x is not None, "the engine stores the inputs of layers without inverse"
        (dy1, dy2), (s1, s2, f, g) = dy, self._residuals
        dy1 += run(g, y[0])[1](dy2)
        x1, x2 = run.gate(*x, after=[dy1])
        dx2 = run(f, x2)[1](dy1)
        x1, x2 = run.gate(x1, x2, after=[dx2])
        dx2 += run(s2, x2)[1](dy2)
        return (x1, x2), (run(s1, x1)[1](dy1), dx2)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self._options
