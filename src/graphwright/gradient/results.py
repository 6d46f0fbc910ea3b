"""What a checkpointed function returns: taken apart into tensors, and put together again of others."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from graphwright.errors import ArgumentError
from graphwright.source.tensorflow_import import left_alone

tf: Any = importlib.import_module("tensorflow")

_COMPOSITE = (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices, tf.experimental.ExtensionType)


@left_alone
def values_of(result: Any) -> Any:
    """What a function returned, with the values of variables in place of them."""

    def value_of(leaf: Any) -> Any:
        return tf.convert_to_tensor(leaf) if isinstance(leaf, tf.Variable) else leaf

    return tf.nest.map_structure(value_of, result)


@left_alone
def tensors_of(result: Any) -> list[Any]:
    """The tensors in what a function returned.

    Raises:
        ArgumentError: it holds what is no tensor and cannot be made one.
    """
    return [_tensor(leaf) for leaf in tf.nest.flatten(result, expand_composites=True) if leaf is not None]


def _tensor(leaf: Any) -> Any:
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"the function returns a {type(leaf).__name__}, which is no tensor", argument="fn", remedy="return tensors, in a nest or alone"
        ) from error


def packing(result: Any) -> Callable[[Sequence[Any]], Any]:
    """Makes of a flat list of tensors what a function returned, of which no tensor is held on to."""

    def kind_of(leaf: Any) -> Any:
        return tf.type_spec_from_value(leaf) if isinstance(leaf, _COMPOSITE) else leaf is None

    kinds = tf.nest.map_structure(kind_of, result)

    def pack(tensors: Sequence[Any]) -> Any:
        rest = iter(tensors)
        filled: list[Any] = []
        for kind in tf.nest.flatten(kinds):
            if isinstance(kind, tf.TypeSpec):
                parts = [next(rest) for _ in tf.nest.flatten(kind, expand_composites=True)]
                filled.append(tf.nest.pack_sequence_as(kind, parts, expand_composites=True))
            else:
                filled.append(None if kind else next(rest))
        return tf.nest.pack_sequence_as(kinds, filled)

    return pack
