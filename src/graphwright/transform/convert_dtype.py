"""Store weights in fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.constants import add_constant, constant_array
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.library import bodies
from graphwright.ir.edit.reroute import replace_node, set_control_inputs
from graphwright.ir.graph import Graph, Node
from graphwright.ir.jobs import Written, edits_in_place, values_beside
from graphwright.ir.traits.values import is_constant
from graphwright.transform.freeze_variables import freeze_variables
from graphwright.transform.interface import put_in_order

_SMALL = ("bfloat16", "float16")


@edits_in_place
def convert_weights(
    graph: Graph,
    dtype: str = "bfloat16",
    *,
    smallest: int = 64,
    where: Callable[[Node], bool] | None = None,
    functions: bool = True,
    **written: Unpack[Written],
) -> int:
    """Store float32 constants as bfloat16 or float16, each followed by a `Cast` to float32; returns how many.

    The graph takes half the bytes and still computes in float32; its results change by the rounding of the weights. Variables of a loaded
    model are frozen first (`freeze_variables`).

    Args:
        dtype: "bfloat16" has the range of float32; "float16" has three more bits of precision, and a constant with a value beyond its
            range stays as it is.
        smallest: constants with fewer elements stay as they are.
        where: which constants to convert.
        functions: whether to change bodies of functions too.

    >>> g = Graph()
    >>> w = add_constant(g, "w", np.ones((8, 8), np.float32))
    >>> g.outputs = g.add_node("Neg", "y", inputs=[w], output_types=[(w.dtype, w.shape)]).outputs
    >>> convert_weights(g), g.nodes
    (1, (<Node w/stored = Const()>, <Node w = Cast(w/stored:0)>, <Node y = Neg(w:0)>))
    """
    if dtype not in _SMALL:
        raise ArgumentError(f"weights cannot be stored as {dtype!r}", argument="dtype", remedy=f"one of {', '.join(_SMALL)}")
    if values := values_beside(graph):
        freeze_variables(graph, values)
    return sum(_convert(body, dtype, smallest, where) for body in (bodies(graph) if functions else (graph,)))


def _convert(graph: Graph, dtype: str, smallest: int, where: Callable[[Node], bool] | None) -> int:
    converted = 0
    for node in graph.nodes:
        if not is_constant(node) or node.outputs[0].dtype.name != "float32" or (where is not None and not where(node)):
            continue
        array = constant_array(node)
        if array is None or array.size < smallest or _is_compact(node, array) or not _is_in_range(array, dtype):
            continue
        value = node.outputs[0]
        stored = add_constant(graph, f"{node.name}/stored", array, dtype=DTYPES[dtype], device=node.device)
        set_control_inputs(graph, stored.producer, node.control_inputs)
        attrs: dict[str, Any] = {"SrcT": stored.dtype, "DstT": value.dtype, "Truncate": False}
        name = f"{node.name}/float32"
        cast = add_op(graph, "Cast", name, [stored], value.dtype, value.shape, device=node.device, **attrs)
        replace_node(node, cast.producer)
        converted += 1
    if converted:
        put_in_order(graph)
    return converted


def _is_compact(node: Node, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> bool:
    """Whether one number stands for many elements, so that it takes less than 16 bits per element."""
    attribute = node.attrs["value"]
    return isinstance(attribute, SerializedAttribute) and 2 * len(attribute.data) < array.nbytes


def _is_in_range(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], dtype: str) -> bool:
    finite = array[np.isfinite(array)]
    return dtype != "float16" or not finite.size or float(np.abs(finite).max()) <= float(np.finfo(np.float16).max)
