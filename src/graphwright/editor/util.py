"""Lists of nodes and tensors, names of scopes and placeholders, and nodes that are often made.

If the name of a new node is taken, `uniquify_name=True` adds a suffix; otherwise a ValueError is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Self, TypeVar, cast

import numpy as np

from graphwright.editor import collecting
from graphwright.editor.base_graph import BaseGraph
from graphwright.editor.node import Node
from graphwright.editor.tensor import Tensor
from graphwright.editor.values import from_attr_value_proto, to_attr_value
from graphwright.editor.visualization import parse_graphviz_json as parse_graphviz_json
from graphwright.source.tensorflow_import import import_tensorflow

T = TypeVar("T")
_PREFIX = "geph"  # Graph Editor PlaceHolder

python_type_to_attr_value = to_attr_value
attr_value_to_python_type = from_attr_value_proto


def concatenate_unique(la: list[T], lb: Iterable[T]) -> list[T]:
    """Append new items of `lb` to `la`, in place.

    >>> concatenate_unique([1, 2], [2, 3])
    [1, 2, 3]
    """
    known = set(la)
    for item in lb:
        if item not in known:
            la.append(item)
            known.add(item)
    return la


class ListView(tuple[T, ...]):
    """An immutable copy of a list."""

    __slots__ = ()

    def __new__(cls, list_: list[T]) -> Self:
        if not isinstance(list_, list):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a list, got: {type(list_)}.")
        return super().__new__(cls, list_)

    def __add__(self, other: Iterable[T]) -> list[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return [*self, *other]

    def __str__(self) -> str:
        return f"ListView[{list(self)}]"


def is_iterable(obj: object) -> bool:
    """Return whether the object is iterable and not a node, tensor or graph."""
    return isinstance(obj, Iterable) and not isinstance(obj, Node | Tensor | BaseGraph)


def flatten_tree(tree: Any, leaves: list[Any] | None = None) -> list[Any]:
    """Return the leaves of nested dictionaries and iterables, appended to `leaves`.

    >>> flatten_tree({"a": [1, (2, 3)], "b": 4})
    [1, 2, 3, 4]
    """
    leaves = [] if leaves is None else leaves
    if isinstance(tree, Mapping):
        tree = list(cast("Mapping[Any, Any]", tree).values())
    if isinstance(tree, str) or not is_iterable(tree):
        leaves.append(tree)
    else:
        for child in tree:
            flatten_tree(child, leaves)
    return leaves


def transform_tree(tree: Any, fn: Callable[[Any], Any], iterable_type: type = tuple) -> Any:
    """Apply a function to each leaf, and return the same structure.

    >>> transform_tree({"a": [1, (2, 3)]}, lambda x: -x)
    {'a': [-1, (-2, -3)]}
    """
    kind = cast("Any", type(tree))
    if isinstance(tree, dict):
        pairs = cast("dict[Any, Any]", tree).items()
        return kind((key, transform_tree(child, fn, iterable_type)) for key, child in pairs)
    if isinstance(tree, str) or not is_iterable(tree):
        return fn(tree)
    children = [transform_tree(child, fn, iterable_type) for child in tree]
    if isinstance(tree, tuple):
        return kind(*children) if hasattr(kind, "_fields") else kind(children)
    return kind(children) if isinstance(tree, list) else iterable_type(children)


def check_graphs(*args: Any) -> None:
    """Raise a ValueError unless all arguments with a graph have the same graph."""
    graphs = [(i, item.graph) for i, item in enumerate(args) if item.graph is not None]
    for i, graph in graphs:
        if graph is not graphs[0][1]:
            raise ValueError(f"Argument[{i}]: Wrong graph!")


def get_unique_graph(tops: Any, check_types: Any = None, none_if_empty: bool = False) -> Any:
    """Return the only graph of nodes and tensors."""
    if isinstance(tops, BaseGraph):
        return tops
    if not is_iterable(tops):
        raise TypeError(f"{type(tops)} is not iterable")
    types = (Node, Tensor) if check_types is None else tuple(check_types) if is_iterable(check_types) else (check_types,)
    homes: dict[Any, Any] = {}
    for top in tops:
        if not isinstance(top, types):
            raise TypeError(f"Expected a type in ({', '.join(t.__name__ for t in types)}), got: {type(top)}")
        homes.setdefault(top.home, top)
    if not homes and not none_if_empty:
        raise ValueError("Can't find the unique graph of an empty list")
    if len(homes) > 1:
        raise ValueError(f"Operation {list(homes.values())[1]} does not belong to given graph")
    return next(iter(homes), None)


def make_list_of_op(ops: Any, check_graph: bool = True, allow_graph: bool = True, ignore_ts: bool = False) -> list[Node]:
    """Return the nodes of a graph, of an iterable, or a single node; `ignore_ts` ignores tensors instead of refusing them."""
    return _make_list(ops, Node, check_graph, allow_graph, ignore_ts, lambda graph: graph.nodes)


def make_list_of_t(ts: Any, check_graph: bool = True, allow_graph: bool = True, ignore_ops: bool = False) -> list[Tensor]:
    """Return the tensors of a graph, of an iterable, or a single tensor; `ignore_ops` ignores nodes instead of refusing them."""
    return _make_list(ts, Tensor, check_graph, allow_graph, ignore_ops, lambda graph: graph.tensors)


def _make_list(things: Any, kind: type[T], check: bool, allow_graph: bool, ignore: bool, of_graph: Callable[[Any], Iterable[T]]) -> list[T]:
    if isinstance(things, BaseGraph):
        if not allow_graph:
            raise TypeError("allow_graph is False: cannot convert a gde.Graph.")
        return list(of_graph(things))
    items: list[Any] = list(things) if is_iterable(things) else [things]
    if items and check:
        get_unique_graph(items, check_types=None if ignore else kind)
    return [item for item in items if isinstance(item, kind)]


def get_tensors(graph: BaseGraph) -> list[Tensor]:
    """Return all tensors of a graph."""
    if not isinstance(graph, BaseGraph):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a graph, got: {type(graph)}")
    return graph.tensors


def get_generating_ops(ts: Any) -> list[Node]:
    """Return the node of each tensor."""
    return [t.node for t in make_list_of_t(ts, allow_graph=False)]


def get_consuming_ops(ts: Any) -> list[Node]:
    """Return the nodes that read the tensors, each once."""
    return list(dict.fromkeys(op for t in make_list_of_t(ts, allow_graph=False) for op in t.consumers()))


class ControlOutputs:
    """The control outputs of the nodes of a graph, always up to date."""

    def __init__(self, g: BaseGraph) -> None:
        if not isinstance(g, BaseGraph):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a gde.Graph, got: {type(g)}")
        self._graph = g

    def update(self) -> ControlOutputs:
        """Do nothing; the table is always up to date."""
        return self

    def get_all(self) -> dict[Node, list[Node]]:
        """Return the nodes that wait, by the node that they wait for."""
        return {node: list(node.control_outputs) for node in self._graph.nodes if node.ir.control_consumers}

    def get(self, op: Node) -> tuple[Node, ...]:
        """Return the nodes that wait for a node."""
        return op.control_outputs

    @property
    def graph(self) -> BaseGraph:
        """The graph."""
        return self._graph


@cache
def get_predefined_collection_names() -> tuple[str, ...]:
    """Return the names in `tf.compat.v1.GraphKeys`."""
    graph_keys = import_tensorflow().compat.v1.GraphKeys
    # `VARIABLES` is an old name of `GLOBAL_VARIABLES`, and logs a warning.
    return tuple(getattr(graph_keys, key) for key in dir(graph_keys) if not key.startswith("_") and key != "VARIABLES")


def find_corresponding_elem(target: Any, dst_graph: BaseGraph, dst_scope: str = "", src_scope: str = "") -> Any:
    """Return the node or tensor of another graph with the name of `target`, with the scope exchanged."""
    if not isinstance(target, Node | Tensor):
        raise TypeError(f"Expected gde.Tensor or gde.Node, got: {type(target)}")
    scope = scope_finalize(src_scope)
    if not target.name.startswith(scope):
        raise ValueError(f"{target.name} does not start with {scope}")
    name = scope_finalize(dst_scope) + target.name.removeprefix(scope)
    return dst_graph.get_tensor_by_name(name) if isinstance(target, Tensor) else dst_graph.get_node_by_name(name)


def find_corresponding(targets: Any, dst_graph: BaseGraph, dst_scope: str = "", src_scope: str = "") -> Any:
    """Apply `find_corresponding_elem` to each leaf of nested dictionaries and iterables."""
    return transform_tree(targets, lambda top: find_corresponding_elem(top, dst_graph, dst_scope, src_scope))


def load_variables_to_tf_graph(g: BaseGraph) -> None:
    """Make `tf.Variable` objects, with collections, of the variables of a graph whose nodes are in the default `tf.Graph`."""
    collecting.load_variables(g.ir)


# Names of scopes and placeholders, and nodes that are often made


def scope_finalize(scope: str) -> str:
    """Return the scope with a slash at its end.

    >>> scope_finalize("a/b"), scope_finalize("")
    ('a/b/', '')
    """
    return f"{scope}/" if scope and not scope.endswith("/") else scope


def scope_dirname(scope: str) -> str:
    """Return the part up to the last slash, inclusive."""
    head, slash, _ = scope.rpartition("/")
    return head + slash


def scope_basename(scope: str) -> str:
    """Return the part after the last slash."""
    return scope.rpartition("/")[2]


def placeholder_name(t: Tensor | None = None, scope: str | None = None, prefix: str = _PREFIX) -> str:
    """Return the name of a placeholder for a tensor: `scope/geph__node_0`, by default in the tensor's scope, or `geph` without a tensor."""
    if t is None:
        return f"{scope_finalize(scope or '')}{prefix}"
    if not isinstance(t, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a gde.Tensor, got: {type(t)}")
    base = scope_basename(t.node.name)
    scope = scope_dirname(t.node.name) if scope is None else scope_finalize(scope)
    return scope + (base if base.startswith(f"{prefix}__") else f"{prefix}__{base}_{t.value_index}")


def make_const(g: BaseGraph, name: str, value: Any, uniquify_name: bool = False) -> Node:
    """Add a `Const`; the value is an argument of `np.asarray`."""
    tf = import_tensorflow()
    value = np.asarray(value)
    dtype = tf.as_dtype(value.dtype) if value.dtype.kind not in "OSU" else tf.string
    return _made(g, name, "Const", uniquify_name, {"dtype": dtype, "value": to_attr_value(value)}, types=[(dtype, value.shape)])


def make_placeholder(g: BaseGraph, name: str, dtype: Any, shape: Any = None, uniquify_name: bool = False) -> Node:
    """Add a `Placeholder`, by default of any shape."""
    tf = import_tensorflow()
    dtype, shape = tf.as_dtype(dtype).base_dtype, tf.TensorShape(shape)
    return _made(g, name, "Placeholder", uniquify_name, {"dtype": dtype, "shape": shape}, types=[(dtype, shape)])


def _made(
    g: BaseGraph,
    name: str,
    op_name: str,
    uniquify_name: bool,
    attrs: Mapping[str, Any],
    inputs: Sequence[Tensor] = (),
    types: Sequence[tuple[Any, Any]] | None = None,
) -> Node:
    node = g.add_node(name, op_name, uniquify_name=uniquify_name)
    try:
        for key, value in attrs.items():
            node.add_attr(key, value)
        node.set_inputs(inputs)
        if types is None:
            node.infer_outputs()
        else:
            node.set_outputs_from_pairs(types)
    except Exception:
        g.remove_node_by_name(node.name)
        raise
    return node


def make_placeholder_from_tensor(g: Any, t: Any = None, scope: str | None = None, prefix: str = _PREFIX) -> Any:
    """Add a `Placeholder` with dtype and shape of a tensor, and the name `placeholder_name`.

    `make_placeholder_from_tensor(t, scope)`, as in contrib.graph_editor, adds it to the graph of `t`, and returns its tensor.
    """
    if isinstance(g, Tensor):
        return make_placeholder_from_tensor(g.graph, g, scope if t is None else t, prefix).output(0)
    return make_placeholder(g, placeholder_name(t, scope=scope, prefix=prefix), t.dtype, t.shape, uniquify_name=True)


def make_placeholder_from_dtype_and_shape(
    g: Any = None, dtype: Any = None, shape: Any = None, scope: str | None = None, prefix: str = _PREFIX
) -> Any:
    """Add a `Placeholder` named `geph`; also known as `ph`.

    `ph(dtype, shape, scope)`, as in contrib.graph_editor, adds it to TensorFlow's default graph, and returns its tensor.
    """
    if not isinstance(g, BaseGraph):
        dtype, shape, scope = (dtype, shape, scope) if g is None else (g, dtype, scope if shape is None else shape)
        v1 = import_tensorflow().compat.v1
        with v1.get_default_graph().name_scope(None):
            return v1.placeholder(dtype, shape, name=placeholder_name(scope=scope, prefix=prefix))
    return make_placeholder(g, placeholder_name(scope=scope, prefix=prefix), dtype, shape, uniquify_name=True)


def make_identity(g: BaseGraph, name: str, input: Tensor, uniquify_name: bool = False) -> Node:  # noqa: A002 - the name it always had
    """Add an `Identity` of a tensor."""
    return _made(g, name, "Identity", uniquify_name, {"T": input.dtype}, [input], [(input.dtype, input.shape)])


def make_simple_binary_op(
    g: BaseGraph, name: str, op_name: str, input_1: Tensor, input_2: Tensor, dtype: Any = None, uniquify_name: bool = False
) -> Node:
    """Add a node with two inputs and one output, whose attribute `T` is by default the dtype of the first input."""
    return _made(g, name, op_name, uniquify_name, {"T": input_1.dtype if dtype is None else dtype}, [input_1, input_2])
