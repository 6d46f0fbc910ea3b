"""A structure of parameter tensors as one vector, and the names of the vector's elements."""

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from graphwright.errors import ArgumentError

tf: Any = importlib.import_module("tensorflow")

_WHERE = "argument 'params'"


@dataclass(frozen=True)
class ParameterLayout:
    """The positions of a structure's tensors in the vector of all parameters.

    Attributes:
        structure: for `tf.nest.pack_sequence_as`.
        shapes: one per tensor, in the order of `tf.nest.flatten`.
        dtype: of all tensors.
        labels: one per tensor, such as `params['rate']`.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any
    labels: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def split(self, vector: Any) -> list[Any]:
        parts = [vector] if len(self.shapes) == 1 else tf.split(vector, self.sizes)
        return [part if len(shape) == 1 else tf.reshape(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def pack(self, leaves: Sequence[Any]) -> Any:
        return tf.nest.pack_sequence_as(self.structure, list(leaves))

    def join(self, leaves: Sequence[Any]) -> Any:
        return tf.concat([leaf if leaf.shape.rank == 1 else tf.reshape(leaf, [-1]) for leaf in leaves], axis=0)

    def element_name(self, index: int) -> str:
        """Return the user's name of an element of the vector, such as `params['kernel'][2, 0]`."""
        for label, shape, size in zip(self.labels, self.shapes, self.sizes, strict=True):
            if index < size:
                place = np.unravel_index(index, shape) if shape else ()
                return label + (f"[{', '.join(str(int(i)) for i in place)}]" if shape else "")
            index -= size
        raise IndexError(index)


def flatten_parameters(params: Any) -> tuple[ParameterLayout, Any]:
    """Return the layout of a structure of parameters (all float64 or all float32), and its values as one vector.

    Python numbers count as float64, except beside float32 tensors.
    """
    leaves = tf.nest.flatten(params)
    if not leaves:
        raise ArgumentError("there are no parameters", where=_WHERE, remedy="give a tensor, or a structure of tensors, to start from")
    dtypes = {tf.as_dtype(leaf.dtype) for leaf in leaves if hasattr(leaf, "dtype")}
    unsupported = sorted(dtype.name for dtype in dtypes - {tf.float32, tf.float64})
    if unsupported:
        raise ArgumentError(
            f"parameters of type {', '.join(unsupported)}",
            where=_WHERE,
            cause="steps are computed by factorizations",
            remedy="give float64 or float32",
        )
    if len(dtypes) > 1:
        raise ArgumentError(
            f"parameters of several types: {', '.join(sorted(dtype.name for dtype in dtypes))}",
            where=_WHERE,
            remedy="cast all parameters to one type, best float64",
        )
    dtype = dtypes.pop() if dtypes else tf.float64
    tensors: list[Any] = []
    for leaf, label in zip(leaves, labels_of(params, "params"), strict=True):
        try:
            tensors.append(tf.convert_to_tensor(leaf, dtype))
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"{label} is {leaf!r}, no real number", where=_WHERE, remedy="give numbers, arrays or tensors, float64 or float32"
            ) from error
        if not tensors[-1].shape.is_fully_defined():
            raise ArgumentError(
                f"{label} is of shape {tensors[-1].shape}",
                where=_WHERE,
                cause="its shape is not known while the graph is built",
                remedy="give the tf.function an input_signature with static shapes, or set_shape",
            )
    layout = ParameterLayout(
        structure=tf.nest.pack_sequence_as(params, [0] * len(leaves)),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors),
        dtype=dtype,
        labels=tuple(labels_of(params, "params")),
    )
    if layout.size == 0:
        raise ArgumentError("the parameters have no elements", where=_WHERE)
    return layout, layout.join(tensors)


def labels_of(structure: Any, prefix: str) -> list[str]:
    """Return one text per leaf, in the order of `tf.nest.flatten`."""
    children: list[tuple[str, Any]]
    if isinstance(structure, Mapping):
        entries = cast("Mapping[Any, Any]", structure)
        children = [(f"{prefix}[{key!r}]", entries[key]) for key in sorted(entries)]
    elif isinstance(structure, list | tuple):
        items = cast("Sequence[Any]", structure)
        fields: Sequence[str] | None = getattr(items, "_fields", None)
        places = [f".{field}" for field in fields] if fields else [f"[{i}]" for i in range(len(items))]
        children = [(prefix + place, item) for place, item in zip(places, items, strict=True)]
    else:
        return [prefix]
    return [label for place, item in children for label in labels_of(item, place)]
