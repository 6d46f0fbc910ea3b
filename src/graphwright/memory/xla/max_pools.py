"""Gradients of max pools in a form that suits XLA.

For the gradient of a max pool, XLA's CPU compiler makes four arrays of indices, each as large as the pool's input, long before it uses
them; its GPU compiler passes over the input several times. If windows do not overlap, comparisons do the same: the gradient goes to the
first largest element of each window, as in TensorFlow's kernels and XLA.
"""

import importlib
from collections.abc import Callable
from typing import Any

from graphwright.ir.edit.reroute import reroute
from graphwright.ir.graph import Graph, Node
from graphwright.ir.walk import topological_order
from graphwright.source.traced_nodes import add_traced

tf: Any = importlib.import_module("tensorflow")

_LARGEST_WINDOW = 16


def rewrite_max_pool_gradients(graph: Graph) -> int:
    """Replace the gradients of max pools whose windows do not overlap; return their number."""
    gradients = [node for node in graph.nodes if _can_be_compared(node)]
    for node in gradients:
        values = list(dict.fromkeys(node.inputs))
        place = [values.index(value) for value in node.inputs]
        scope = graph.unique_name(f"{node.name}/compared")
        reroute(add_traced(graph, _gradient_of(_window(node), place), values, scope=scope), node.outputs)
        graph.remove_node(node)
    if gradients:
        graph.sort_nodes(topological_order(graph))
    return len(gradients)


def _window(node: Node) -> tuple[int, int]:
    sizes: Any = node.attrs["ksize"]
    return int(sizes[1]), int(sizes[2])


def _can_be_compared(node: Node) -> bool:
    if node.op_type != "MaxPoolGrad" or node.attrs.get("data_format", b"NHWC") != b"NHWC" or node.control_inputs or node.control_consumers:
        return False
    sizes: Any = node.attrs["ksize"]
    if list(sizes) != list(node.attrs["strides"]) or sizes[0] != 1 or sizes[3] != 1:  # type: ignore[arg-type]
        return False
    shape, pooled = node.inputs[0].shape, node.inputs[1].shape
    if shape is None or pooled is None or None in shape or None in pooled or sizes[1] * sizes[2] > _LARGEST_WINDOW:
        return False
    divides = all(shape[k] == pooled[k] * sizes[k] for k in (1, 2))  # type: ignore[operator]
    return divides or node.attrs.get("padding") == b"VALID"


def _gradient_of(window: tuple[int, int], place: list[int]) -> Callable[..., list[Any]]:
    rows, columns = window

    def compare(*given: Any) -> list[Any]:
        x, largest, gradient = (given[k] for k in place)
        batch, height, width, channels = largest.shape
        inside = x[:, : height * rows, : width * columns]
        windows = tf.reshape(inside, [batch, height, rows, width, columns, channels])
        zero = tf.zeros([], gradient.dtype)
        taken: Any = None
        lines: list[Any] = []
        for i in range(rows):
            line: list[Any] = []
            for j in range(columns):
                here = tf.equal(windows[:, :, i, :, j], largest)
                if i == rows - 1 and j == columns - 1:
                    here = tf.ones_like(here)  # what nothing took, as with NaN, is not lost
                mine = here if taken is None else tf.logical_and(here, tf.logical_not(taken))
                line.append(tf.where(mine, gradient, zero))
                taken = here if taken is None else tf.logical_or(taken, here)
            lines.append(tf.stack(line, axis=3))
        whole = tf.reshape(tf.stack(lines, axis=2), [batch, height * rows, width * columns, channels])
        rest = [[0, 0], [0, x.shape[1] - height * rows], [0, x.shape[2] - width * columns], [0, 0]]
        return [tf.pad(whole, rest)]

    return compare
