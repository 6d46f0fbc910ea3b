"""`check_inverse`: the error of rebuilt streams, by depth and dtype.

*Depth* counts reversible blocks back from the last streams that were stored. The error of one block is about the rounding error of the
stream dtype. Earlier blocks add to it, and functions that stretch their argument make it grow.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.plain import Result
from graphwright.report.sheet import Block, Column, Paragraph, Sheet, Tab, Table
from graphwright.reversible import engine
from graphwright.reversible.stream_layer import LayerCall, StreamLayer, recorded_calls
from graphwright.source.private_keras import all_layers

tf: Any = importlib.import_module("tensorflow")
keras: Any = importlib.import_module("keras")

DTYPES = ("float64", "float32", "bfloat16", "float16", "mixed_bfloat16")
LARGE_ERROR = 0.05
"""Relative error of a rebuilt stream from which gradients are unreliable."""


@dataclass(frozen=True, slots=True)
class InverseRow:
    """The error at one depth.

    Attributes:
        depth: blocks back from the last stored streams.
        dtype: the Keras dtype policy.
        relative_error: root mean square of the difference over that of the stream; the larger of both streams.
        max_abs: largest difference of an element.
    """

    depth: int
    dtype: str
    relative_error: float
    max_abs: float


@dataclass(frozen=True)
class InverseCheck(Result):
    """The result of `check_inverse`.

    Attributes:
        name: of the layer or model.
        rows: by dtype, then depth.
    """

    name: str
    rows: tuple[InverseRow, ...]

    def worst(self, dtype: str) -> InverseRow:
        """Return the row of a dtype with the largest error."""
        rows = [row for row in self.rows if row.dtype == dtype]
        if not rows:
            raise ArgumentError(f"dtype {dtype!r} was not checked", remedy=f"take one of {', '.join(self.dtypes)}")
        return max(rows, key=lambda row: np.inf if np.isnan(row.relative_error) else row.relative_error)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes, in the order in which they were checked."""
        return tuple(dict.fromkeys(row.dtype for row in self.rows))

    def __str__(self) -> str:
        return _sheet(self).text()


def _sheet(check: InverseCheck) -> Sheet:
    bad = [dtype for dtype in check.dtypes if not check.worst(dtype).relative_error < LARGE_ERROR]
    deepest = max(row.depth for row in check.rows)
    blocks = "1 block" if deepest == 1 else f"{deepest} blocks"
    verdict = f"{', '.join(bad)} drifts too far for gradients to be trusted." if bad else "every dtype stays close."
    errors = {(row.depth, row.dtype): row.relative_error for row in check.rows}
    depths = [k for k in sorted({row.depth for row in check.rows}) if k <= 4 or k % 4 == 0 or k == deepest]
    columns = [Column[int](dtype, lambda k, dtype=dtype: f"{errors[k, dtype]:.1e}") for dtype in check.dtypes]
    columns = [Column[int]("blocks back", lambda k: k, kind="name"), *columns]
    parts: list[Block] = [Table(depths, columns, limit=None, title="Relative error of rebuilt streams", part="always")]
    if bad:
        remedy = "Streams in float32 (a mixed policy, or stream_dtype='float32') drift later; shorter sequences drift less."
        parts.append(Paragraph(remedy, part="always"))
    return Sheet(f"{check.name}: rebuilt over {blocks}, {verdict}", tabs=[Tab("overview", "Overview", parts)])


def check_inverse(target: Any, inputs: Any, *, dtypes: Sequence[str] = DTYPES, training: bool = False) -> InverseCheck:
    """Run a reversible network forward, rebuild all streams from its end, and compare.

    The network is copied for each dtype, with its weights. The original is built if necessary, and otherwise not changed.

    Args:
        target: a `ReversibleSequence` or `ReversibleBlock`, or a Keras model of any kind that calls such layers, at whatever depth.
        inputs: its inputs: one tensor, or a pair for a layer.
        dtypes: Keras dtype policies: `"float64"`, `"mixed_bfloat16"`, ...
        training: whether batch normalization and dropout run as in training.

    Raises:
        ArgumentError: nothing reversible in the target, functions that cannot be copied, no dtypes, or inputs without samples.

    Source of the question: A. Gomez et al., "The Reversible Residual Network", 2017, section 3.2 and figure 3.

    >>> from graphwright.reversible.block import ReversibleBlock
    >>> block = ReversibleBlock(keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(4, activation="tanh"))
    >>> check = check_inverse(block, np.ones((2, 8)), dtypes=["float64", "bfloat16"])
    >>> check.worst("float64").relative_error < 1e-12
    True
    """
    if not dtypes or not all(len(tensor) for tensor in tf.nest.flatten(inputs)):
        raise ArgumentError("there is nothing to check", remedy="give at least one dtype, and inputs of at least one sample")
    calls = _reversible_calls(target, inputs)
    if not calls:
        raise ArgumentError(
            f"{type(target).__name__} {getattr(target, 'name', '')!r} holds no reversible layer",
            argument="target",
            remedy="give a ReversibleSequence, or a model that holds one",
        )
    worst: dict[tuple[str, int], InverseRow] = {}
    for layer, x in calls:
        for dtype in dtypes:
            for row in _errors(_copied(layer, dtype, x), x, dtype, training):
                known = worst.get((dtype, row.depth))
                if known is None or not row.relative_error <= known.relative_error:
                    worst[dtype, row.depth] = row
    order = list(dtypes)
    return InverseCheck(target.name, tuple(sorted(worst.values(), key=lambda row: (order.index(row.dtype), row.depth))))


class _Replay(engine.InverseRun):
    def __init__(self, forward: engine.ForwardRun) -> None:
        super().__init__(forward.values, {}, forward.training, forward.mask)
        self._records = list(forward.records)

    def __call__(self, function: Any, x: Any) -> Any:
        self.states = self._records.pop().states
        return super().__call__(function, x)

    def skip(self, part: Any) -> None:
        del self._records[len(self._records) - len(part.functions) :]


def _errors(layer: Any, x: Any, dtype: str, training: bool) -> list[InverseRow]:
    parts = layer.stream_parts()
    trainable, state = engine.variables_of(parts)
    forward = engine.ForwardRun(engine.read(trainable), engine.read(state), training, None)

    def cast(tensor: Any) -> Any:
        return tf.cast(tensor, layer.compute_dtype)

    streams: list[Any] = [layer.to_streams(tf.nest.map_structure(cast, x))]
    for part in parts:
        streams.append(part.stream_forward(streams[-1], forward))
    replay = _Replay(forward)
    rebuilt, depth, rows = streams[-1], 0, list[InverseRow]()
    for part, before in zip(reversed(parts), reversed(streams[:-1]), strict=True):
        if not part.is_invertible:
            replay.skip(part)
            rebuilt, depth = before, 0
            continue
        rebuilt = part.stream_inverse(rebuilt, replay)
        if part.functions:
            depth += 1
            pairs = [[tf.cast(stream, tf.float64).numpy() for stream in pair] for pair in zip(rebuilt, before, strict=True)]
            relative = max(_rms(a - b) / max(_rms(b), 1e-300) for a, b in pairs)
            rows.append(InverseRow(depth, dtype, relative, max(float(np.abs(a - b).max()) for a, b in pairs)))
    return rows


def _reversible_calls(target: Any, inputs: Any) -> list[LayerCall]:
    if not isinstance(target, keras.Layer):
        return []
    if not target.built or not all(layer.built for layer in all_layers(target) if isinstance(layer, StreamLayer)):
        target(inputs, training=False)  # building calls layers too, for shapes
    if isinstance(target, StreamLayer):
        return [(target, inputs)]
    with recorded_calls() as calls:
        target(inputs, training=False)
    return calls


def _copied(layer: Any, dtype: str, x: Any) -> Any:
    try:
        copy: Any = layer.__class__.from_config(layer.get_config())
    except Exception as error:
        raise ArgumentError(
            f"layer {layer.name!r} cannot be copied: {error}",
            argument="target",
            cause="a function is not a Keras layer, or has no get_config",
            remedy="make the functions Keras layers, registered with keras.saving.register_keras_serializable",
        ) from error
    for part in all_layers(copy):
        part.dtype_policy = keras.dtype_policies.get(dtype)
    pair: Any = x
    copy.build(tuple(tuple(np.shape(tensor)) for tensor in pair) if isinstance(x, list | tuple) else tuple(np.shape(x)))
    for own, original in zip(copy.weights, layer.weights, strict=True):
        own.assign(keras.ops.cast(original.value, own.dtype))
    return copy


def _rms(array: Any) -> float:
    return float(np.linalg.norm(array)) / math.sqrt(array.size)
