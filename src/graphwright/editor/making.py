"""Nodes that are often made: constants, placeholders, identities, ops with two inputs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphwright.editor.base_graph import BaseGraph
from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.editor.values import to_attr_value
from graphwright.source.tensorflow_import import import_tensorflow

_PREFIX = "geph"  # Graph Editor PlaceHolder


def scope_finalize(scope: str) -> str:
    """The scope with a slash at its end.

    >>> scope_finalize("a/b"), scope_finalize("")
    ('a/b/', '')
    """
    return f"{scope}/" if scope and not scope.endswith("/") else scope


def scope_dirname(scope: str) -> str:
    """What stands before the last slash, and the slash."""
    head, slash, _ = scope.rpartition("/")
    return head + slash


def scope_basename(scope: str) -> str:
    """What stands after the last slash."""
    return scope.rpartition("/")[2]


def placeholder_name(t: Tensor | None = None, scope: str | None = None, prefix: str = _PREFIX) -> str:
    """The name of a placeholder that stands for a tensor: `scope/geph__node_0`.

    Args:
        t: the tensor; without one the name is `geph`.
        scope: where to put it; by default the tensor's own.
        prefix: instead of `geph`.

    Raises:
        TypeError: `t` is not a tensor.
    """
    if t is None:
        return f"{scope_finalize(scope or '')}{prefix}"
    if not isinstance(t, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a gde.Tensor, got: {type(t)}")
    base = scope_basename(t.node.name)
    scope = scope_dirname(t.node.name) if scope is None else scope_finalize(scope)
    return scope + (base if base.startswith(f"{prefix}__") else f"{prefix}__{base}_{t.value_index}")


def make_const(g: BaseGraph, name: str, value: Any, uniquify_name: bool = False) -> Node:
    """Add a `Const`.

    Args:
        value: a NumPy array, or what `np.asarray` takes.
        uniquify_name: whether to add a suffix when the name is taken.

    Raises:
        ValueError: the name is taken.
    """
    tf = import_tensorflow()
    value = np.asarray(value)
    dtype = tf.as_dtype(value.dtype) if value.dtype.kind not in "OSU" else tf.string
    content = to_attr_value(value)
    node = g.add_node(name, "Const", uniquify_name=uniquify_name)
    node.add_attr("dtype", dtype)
    node.add_attr("value", content)
    node.set_outputs_from_pairs([(dtype, value.shape)])
    return node


def make_placeholder(g: BaseGraph, name: str, dtype: Any, shape: Any = None, uniquify_name: bool = False) -> Node:
    """Add a `Placeholder`.

    Args:
        dtype: what `tf.as_dtype` takes.
        shape: what `tf.TensorShape` takes; None for any shape.
        uniquify_name: whether to add a suffix when the name is taken.

    Raises:
        ValueError: the name is taken.
    """
    tf = import_tensorflow()
    dtype, shape = tf.as_dtype(dtype).base_dtype, tf.TensorShape(shape)
    node = g.add_node(name, "Placeholder", uniquify_name=uniquify_name)
    node.add_attr("dtype", dtype)
    node.add_attr("shape", shape)
    node.set_outputs_from_pairs([(dtype, shape)])
    return node


def make_placeholder_from_tensor(g: Any, t: Any = None, scope: str | None = None, prefix: str = _PREFIX) -> Any:
    """Add a `Placeholder` with the dtype and shape of a tensor, named after it (see `placeholder_name`).

    Args:
        g: the graph. contrib.graph_editor knew no such argument: `make_placeholder_from_tensor(t, scope)` puts the placeholder
            into the graph of `t`, and returns its tensor, as it did.
        t: the tensor.
        scope: where to put it; by default the tensor's own.
        prefix: instead of `geph`.
    """
    if isinstance(g, Tensor):
        return make_placeholder_from_tensor(g.graph, g, scope if t is None else t, prefix).output(0)
    return make_placeholder(g, placeholder_name(t, scope=scope, prefix=prefix), t.dtype, t.shape, uniquify_name=True)


def make_placeholder_from_dtype_and_shape(
    g: Any = None, dtype: Any = None, shape: Any = None, scope: str | None = None, prefix: str = _PREFIX
) -> Any:
    """Add a `Placeholder` named `geph`; also known as `ph`.

    Args:
        g: the graph. contrib.graph_editor knew no such argument: `ph(dtype, shape, scope)` puts the placeholder into TensorFlow's default
            graph, and returns its tensor, as it did.
        dtype: what `tf.as_dtype` takes.
        shape: what `tf.TensorShape` takes; None for any shape.
        scope: where to put it.
        prefix: instead of `geph`.
    """
    if not isinstance(g, BaseGraph):
        dtype, shape, scope = (dtype, shape, scope) if g is None else (g, dtype, scope if shape is None else shape)
        v1 = import_tensorflow().compat.v1
        with v1.get_default_graph().name_scope(None):
            return v1.placeholder(dtype, shape, name=placeholder_name(scope=scope, prefix=prefix))
    return make_placeholder(g, placeholder_name(scope=scope, prefix=prefix), dtype, shape, uniquify_name=True)


def make_identity(g: BaseGraph, name: str, input: Tensor, uniquify_name: bool = False) -> Node:  # noqa: A002 - the name it always had
    """Add an `Identity` of a tensor.

    Raises:
        ValueError: the name is taken.
    """
    node = g.add_node(name, "Identity", uniquify_name=uniquify_name)
    with _complete_or_gone(g, node):
        node.set_inputs([input])
        node.add_attr("T", input.dtype)
        node.set_outputs_from_pairs([(input.dtype, input.shape)])
    return node


def make_simple_binary_op(
    g: BaseGraph, name: str, op_name: str, input_1: Tensor, input_2: Tensor, dtype: Any = None, uniquify_name: bool = False
) -> Node:
    """Add a node with two inputs and one output, whose dtype is its attribute `T`.

    Args:
        dtype: by default that of the first input.
        uniquify_name: whether to add a suffix when the name is taken.

    Raises:
        ValueError: the name is taken, or the inputs do not fit.
    """
    node = g.add_node(name, op_name, uniquify_name=uniquify_name)
    with _complete_or_gone(g, node):
        node.add_attr("T", input_1.dtype if dtype is None else dtype)
        node.set_inputs([input_1, input_2])
        node.infer_outputs()
    return node


@contextmanager
def _complete_or_gone(g: BaseGraph, node: Node) -> Generator[None]:
    """Remove the node again if it cannot be completed."""
    try:
        yield
    except Exception:
        g.remove_node_by_name(node.name)
        raise
