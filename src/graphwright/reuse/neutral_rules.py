"""The rules of `simplify` for operations that change nothing or cancel: results are equal bit for bit, for all values."""
# The rules are short functions of tensors, whose types TensorFlow does not state:
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphwright.reuse.rule import Rule
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.transform.match import Match

_EXACT_IN = {
    "float32": ("float16", "bfloat16", "int8", "uint8", "int16", "uint16", "bool"),
    "float64": ("float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
    "int32": ("int8", "uint8", "int16", "uint16", "bool"),
    "int64": ("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool"),
}
"""By dtype, the dtypes whose values it represents exactly."""


def neutral_rules() -> list[Rule]:
    """Return the rules; their names are those of the report."""
    tf: Any = import_tensorflow()
    raw: Any = tf.raw_ops
    shapes, transposes, casts, choices = "reshapes", "transposes", "casts", "choices by a constant"
    arithmetic = "arithmetic that does nothing"
    return [
        Rule(lambda x, p, q: tf.transpose(tf.transpose(x, p), q), lambda x: x, _undo_each_other, transposes, keep_shared=True),
        Rule(lambda x, p, q: tf.transpose(tf.transpose(x, p), q), _composed, _are_constants, transposes),
        Rule(lambda x, p: raw.Transpose(x=x, perm=p), lambda x: x, lambda m: _in_order(m.p.constant), transposes),
        Rule(lambda x, s: raw.Reshape(tensor=x, shape=s), lambda x: x, _keeps_shape, shapes),
        Rule(lambda x, s, t: tf.reshape(tf.reshape(x, s), t), lambda x, t: raw.Reshape(tensor=x, shape=t), name=shapes, keep_shared=True),
        Rule(lambda x, s: raw.BroadcastTo(input=x, shape=s), lambda x: x, _keeps_shape, "broadcasts"),
        Rule(lambda x, n: raw.Tile(input=x, multiples=n), lambda x: x, lambda m: _all(m.n.constant, 1), "broadcasts"),
        Rule(lambda x, n: raw.Pad(input=x, paddings=n), lambda x: x, lambda m: _all(m.n.constant, 0), "broadcasts"),
        Rule(lambda x: raw.Cast(x=x, DstT=x.dtype), lambda x: x, name=casts),
        Rule(
            lambda x, *, wide: raw.Cast(x=raw.Cast(x=x, DstT=wide), DstT=x.dtype),
            lambda x: x,
            lambda m: m.x.dtype in _EXACT_IN.get(m.replaced[0].producer.inputs[0].dtype.name, ()),
            casts,
            choices={"wide": [tf.float32, tf.float64, tf.int32, tf.int64]},
            keep_shared=True,
        ),
        Rule(lambda x, c: x * c, lambda x: x, lambda m: _all(m.c.constant, 1) and _keeps_shape(m), arithmetic),
        Rule(lambda x, c: raw.RealDiv(x=x, y=c), lambda x: x, lambda m: _all(m.c.constant, 1) and _keeps_shape(m), arithmetic),
        Rule(lambda x, c: x - c, lambda x: x, lambda m: _is_plain_zero(m.c.constant) and _keeps_shape(m), arithmetic),
        Rule(
            lambda x, c: x + c,
            lambda x: x,
            lambda m: m.x.dtype.startswith(("int", "uint")) and _all(m.c.constant, 0) and _keeps_shape(m),
            arithmetic,
        ),
        Rule(lambda x: tf.negative(tf.negative(x)), lambda x: x, name=arithmetic, keep_shared=True),
        Rule(lambda x: tf.logical_not(tf.logical_not(x)), lambda x: x, name=arithmetic, keep_shared=True),
        Rule(lambda x: tf.nn.relu(tf.nn.relu(x)), lambda x: raw.Relu(features=x), name=arithmetic, keep_shared=True),
        Rule(lambda c, x, y: raw.SelectV2(condition=c, t=x, e=y), lambda x: x, lambda m: _chooses(m, 1, m.x.shape), choices),
        Rule(lambda c, x, y: raw.SelectV2(condition=c, t=x, e=y), lambda y: y, lambda m: _chooses(m, 0, m.y.shape), choices),
    ]


def _all(constant: Any, number: int) -> bool:
    return constant is not None and constant.size > 0 and bool(np.all(constant == number))


def _is_plain_zero(constant: Any) -> bool:
    return _all(constant, 0) and not np.any(np.signbit(constant))


def _is_same(first: Any, second: Any) -> bool:
    return first is not None and None not in first and first == second


def _keeps_shape(match: Match) -> bool:
    return _is_same(match.x.shape, match.result(0).shape)


def _chooses(match: Match, number: int, shape: Any) -> bool:
    return _all(match.c.constant, number) and _is_same(shape, match.result(0).shape)


def _in_order(permutation: Any) -> bool:
    return permutation is not None and permutation.tolist() == list(range(permutation.size))


def _are_constants(match: Match) -> bool:
    return match.p.constant is not None and match.q.constant is not None


def _permutation(match: Match) -> Sequence[int]:
    """Return both transposes as one; axes may be negative."""
    first, second = match.p.constant, match.q.constant
    assert first is not None
    assert second is not None
    return [int(first[k]) % first.size for k in second.tolist()]


def _undo_each_other(match: Match) -> bool:
    return _are_constants(match) and _in_order(np.array(_permutation(match)))


def _composed(x: Any, match: Match) -> Any:
    return import_tensorflow().transpose(x, _permutation(match))
