"""Keys of calls: two calls with equal keys run the same function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphwright.run.traced_step import TracedStep
from graphwright.source.concrete_function import traced_arguments
from graphwright.source.tensorflow_import import import_tensorflow


def signature_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, tensor_types: tuple[type, ...] = ()) -> Any:
    """Return the key of a call: structure, shapes and dtypes of tensors, values of other arguments, and the replica."""
    tf = import_tensorflow()

    variables: dict[int, int] = {}

    def described(leaf: Any) -> Any:
        if isinstance(leaf, tf.Variable) and not tensor_types:  # given twice, it is one: its writes and reads have an order
            rank = leaf.shape.rank
            number = variables.setdefault(id(leaf), len(variables))
            return ("variable", number, None if rank is None else tuple(leaf.shape), leaf.dtype.name)
        parts = tf.nest.flatten(leaf, expand_composites=True)
        if len(parts) != 1 or parts[0] is not leaf:  # a sparse or ragged tensor, or an extension type with constants of its own
            return (type(leaf), tf.type_spec_from_value(leaf), tuple(described(part) for part in parts))
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is None or dtype is None or (tensor_types and not isinstance(leaf, tensor_types)):
            return same_constant(leaf)
        is_open = getattr(shape, "rank", 0) is None
        return (None if is_open else tuple(shape), str(getattr(dtype, "name", dtype)))

    # A value per replica counts by its parts, each with its shape.
    structure = tf.nest.map_structure(_parts, (args, dict(sorted(kwargs.items()))))
    leaves = tuple(described(leaf) for leaf in tf.nest.flatten(structure))
    return (_replica(), repr(tf.nest.map_structure(_nothing, structure)), leaves)


def same_constant(leaf: Any) -> Any:
    """Return the key of a non-tensor argument: its value if it is plain, else the object itself.

    >>> same_constant(1) == same_constant(True), same_constant([]) == same_constant([])
    (False, False)
    >>> same_constant(np.float32(1)) == same_constant(np.float32(1)), same_constant(1j) == same_constant(1j)
    (True, True)
    """
    plain = int | float | complex | str | bytes | None | slice | range | np.generic | import_tensorflow().TensorShape
    return (type(leaf), repr(leaf)) if isinstance(leaf, plain) else _Same(leaf)


@dataclass(frozen=True, eq=False, slots=True)
class _Same:
    """Equal only to itself. It holds the object, so that no other object gets its id."""

    _thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._thing is self._thing

    def __hash__(self) -> int:
        return id(self._thing)


def _replica() -> int:
    tf = import_tensorflow()
    replica = tf.distribute.get_replica_context()
    if replica is None or not tf.distribute.has_strategy():
        return 0
    number = replica.replica_id_in_sync_group
    return int((tf.get_static_value(number) if tf.is_tensor(number) else number) or 0)


def _nothing(_: Any) -> int:
    return 0


def _parts(leaf: Any) -> Any:
    return list(leaf.values) if isinstance(leaf, import_tensorflow().distribute.DistributedValues) else leaf


def signature_of_shapes(target: TracedStep) -> Any:
    """Return the key of a later call with tensors of the target's shapes and the Python values of its trace."""
    tf = import_tensorflow()
    structure = traced_arguments(target.function)
    tensors = iter(zip(target.shapes, (tensor.dtype.name for tensor in target.function.inputs), strict=False))
    leaves = [next(tensors) if isinstance(leaf, tf.TensorSpec) else same_constant(leaf) for leaf in tf.nest.flatten(structure)]
    return (_replica(), repr(tf.nest.map_structure(_nothing, structure)), tuple(leaves))
