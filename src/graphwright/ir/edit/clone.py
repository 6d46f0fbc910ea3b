"""Copy nodes into the same graph or another one, with other inputs, under other names, with the functions that they call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute
from graphwright.ir.colocation import ATTRIBUTE, with_names
from graphwright.ir.edit.library import import_functions, with_functions
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.node import check_name
from graphwright.ir.signature import Collection, NamedRefs
from graphwright.ir.subgraph import graph_of
from graphwright.ir.traits import is_back_edge
from graphwright.ir.walk import order_of


@dataclass(frozen=True)
class CloneResult:
    """Where the copies are."""

    graph: Graph
    """The graph that holds them."""
    node_of: dict[Node, Node] = field(default_factory=dict[Node, Node])
    """Original -> copy."""
    value_of: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """Value of an original -> value of its copy; and each value of the input map -> what stands for it."""
    functions: dict[str, str] = field(default_factory=dict[str, str])
    """Function that was copied along -> its name in the other library."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The copies, in order."""
        return tuple(self.node_of.values())


def clone(
    nodes: Iterable[Node],
    *,
    into: Graph | None = None,
    input_map: Mapping[Value, Value] | None = None,
    control_map: Mapping[Node, Node] | None = None,
    scope: str = "",
    rename: Callable[[str], str] | None = None,
    collections: bool = False,
) -> CloneResult:
    """Copy nodes.

    The copies wait for each other as the originals do. Control inputs from outside stay in the same graph; in another
    one only those in `control_map` do. Functions that are called come along into another graph, under another name where
    its own is taken by a different function. Devices are kept; colocation constraints follow the copies, and are
    dropped where they name a node that another graph does not have.

    Args:
        nodes: of one graph.
        into: the graph that gets the copies; by default their own.
        input_map: value that the originals read -> what the copies read in its place, also for values of the nodes themselves.
        control_map: node outside that the originals wait for -> what the copies wait for.
        scope: put before the names: `scope/name`.
        rename: a function of the original's name, in place of `scope`. A suffix is added where a name is taken.
        collections: whether the copies also enter the collections that hold their originals.

    Raises:
        GraphError: an input from outside has nothing to take its place in another graph, dtypes differ, or the nodes
            belong to several graphs; nothing is changed then.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[2]
    ... %a = Relu(%x:0) : float32[2]
    ... %b = Neg(%a:0) : float32[2]
    ... ''')
    >>> clone([g["a"], g["b"]], scope="copy").node_of[g["b"]]
    <Node copy/b = Neg(copy/a:0)>
    """
    given = dict.fromkeys(nodes)
    if not given:
        return CloneResult(Graph() if into is None else into, {}, dict(input_map or {}))
    source = graph_of(given)
    target = source if into is None else into
    values = dict(input_map or {})
    _check_inputs(given, values, source, target)
    controls = _checked_controls(given, dict(control_map or {}), target)
    order = order_of(given)

    prefix = f"{scope}/" if scope else ""
    names = {node: rename(node.name) if rename is not None else prefix + node.name for node in order}
    for name in names.values():
        check_name(name, target.name)

    functions = import_functions(source, target, order)
    result = CloneResult(target, {}, dict(values), functions)
    for node in order:
        _copy(node, target, names[node], result, controls)
    for node in order:  # back edges of loops, whose values exist now
        copy = result.node_of[node]
        if len(copy.inputs) != len(node.inputs):
            target.set_inputs(copy, [result.value_of.get(v, v) for v in node.inputs])
    _follow_colocation(result, source)
    for value, variable in source.variables.copy().items():
        if value.producer in given:
            target.variables[result.node_of[value.producer].outputs[value.index]] = variable
    target.refresh_shapes(result.nodes if values else [copy for node, copy in result.node_of.items() if node in source.stale])
    if collections:
        _copy_collections(source, target, result)
    return result


def _check_inputs(given: Mapping[Node, object], values: Mapping[Value, Value], source: Graph, target: Graph) -> None:
    for old, new in values.items():
        if not target.owns(new.producer):
            raise GraphError(f"{new.name} does not belong to graph {target.name!r}", where=f"input_map, in place of {old.name}")
        if old.dtype != new.dtype:
            raise GraphError(
                f"{old.name} has dtype {old.dtype}, and {new.name}, which takes its place, {new.dtype}",
                where="input_map",
                remedy="insert a Cast",
            )
    if target is source:
        return
    missing = dict.fromkeys(v.name for node in given for v in node.inputs if v.producer not in given and v not in values)
    if missing:
        raise GraphError(
            f"nothing in graph {target.name!r} takes the place of {', '.join(list(missing)[:3])}"
            + (f" and {len(missing) - 3} more" if len(missing) > 3 else ""),
            where="input_map",
            remedy="map these values, or copy the nodes that make them too",
        )


def _checked_controls(given: Mapping[Node, object], control_map: dict[Node, Node], target: Graph) -> dict[Node, Node]:
    for old, new in control_map.items():
        if not target.owns(new):
            raise GraphError(f"{new.name!r} does not belong to graph {target.name!r}", where=f"control_map, in place of {old.name!r}")
        if old in given:
            raise GraphError(f"{old.name!r} is copied itself", where="control_map")
    return control_map


def _copy(node: Node, target: Graph, name: str, result: CloneResult, control_map: Mapping[Node, Node]) -> None:
    inputs = [result.value_of.get(v, v) for v in node.inputs if v in result.value_of or not is_back_edge(v, node)]
    controls: list[Node] = []
    for control in node.control_inputs:
        after = result.node_of.get(control) or control_map.get(control)
        if after is not None:
            controls.append(after)
        elif target.owns(control):
            controls.append(control)
    copy = target.add_node(
        with_functions(node.op_type, result.functions),
        target.unique_name(name),
        inputs=inputs,
        control_inputs=controls,
        attrs={key: with_functions(attribute, result.functions) for key, attribute in node.attrs.items()},
        output_types=[(v.dtype, v.last_shape) for v in node.outputs],
        device=node.device,
        extra=node.extra,
    )
    result.node_of[node] = copy
    for value, new in zip(node.outputs, copy.outputs, strict=True):
        result.value_of.setdefault(value, new)


def _follow_colocation(result: CloneResult, source: Graph) -> None:
    new_name = {node.name: copy.name for node, copy in result.node_of.items()}
    same = result.graph is source
    for node, copy in result.node_of.items():
        attribute: Attribute | None = node.attrs.get(ATTRIBUTE)
        if attribute is not None:
            result.graph.set_attr(copy, ATTRIBUTE, with_names(attribute, lambda name: new_name.get(name, name if same else None)))


def _copy_collections(source: Graph, target: Graph, result: CloneResult) -> None:
    for name, collection in list(source.collections.items()):
        copies = [copy for item in list(collection.items) if (copy := _copied_item(item, result)) is not None]
        if copies:
            if name not in target.collections:
                target.collections[name] = Collection(collection.kind)
            target.collections[name].items += copies


def _copied_item(item: object, result: CloneResult) -> object | None:
    """What stands for an item among the copies; None where it holds something that was not copied."""
    if isinstance(item, Node):
        return result.node_of.get(item)
    if isinstance(item, Value):
        return result.value_of.get(item) if item.producer in result.node_of else None
    if not isinstance(item, NamedRefs) or not item.refs:
        return None
    refs: dict[str, Value | Node] = {}
    for path, held in item.refs.items():
        copy = _copied_item(held, result)
        if not isinstance(copy, Value | Node):
            return None
        refs[path] = copy
    return NamedRefs(item.serialized, refs)
