"""Copies of nodes, within a graph or into another one with the functions that they call, and copies of whole graphs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute
from graphwright.ir.colocation import ATTRIBUTE, with_names
from graphwright.ir.edit.copying import CloneResult as CloneResult
from graphwright.ir.edit.copying import copy_nodes, copy_whole
from graphwright.ir.edit.library import copy_functions, import_functions
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import Collection, NamedRefs
from graphwright.ir.subgraph import graph_of
from graphwright.ir.walk import order_of


def clone(
    nodes: Iterable[Node],
    *,
    into: Graph | None = None,
    input_map: Mapping[Value, Value] | None = None,
    control_map: Mapping[Node, Node] | None = None,
    scope: str = "",
    rename: Callable[[str], str] | None = None,
) -> CloneResult:
    """Copy nodes.

    The copies wait for each other as the originals do. In the same graph, control inputs from outside are kept; in another one, only
    those in `control_map`. Called functions are copied along, with a suffix where a different function has their name. Devices are kept;
    colocation constraints follow the copies, and are dropped where another graph lacks the node.

    Args:
        into: the graph that gets the copies; by default their own.
        input_map: value that the originals read -> replacement for the copies, also for values of the nodes themselves.
        control_map: node outside that the originals wait for -> its replacement.
        scope: a prefix of the names: `scope/name`.
        rename: a function of the original's name, instead of `scope`. A suffix is added where a name is taken.

    Raises:
        GraphError: an input from outside has no replacement in another graph, dtypes differ, or the nodes belong to several graphs.
    """
    originals = dict.fromkeys(nodes)
    if not originals:
        return CloneResult(Graph() if into is None else into, {}, dict(input_map or {}))
    source = graph_of(originals)
    target = source if into is None else into
    values = dict(input_map or {})
    _check_inputs(originals, values, source, target)
    controls = dict(control_map or {})
    for old, new in controls.items():
        if not target.owns(new):
            raise GraphError(f"{new.name!r} does not belong to graph {target.name!r}", where=f"control_map, in place of {old.name!r}")
        if old in originals:
            raise GraphError(f"{old.name!r} is copied itself", where="control_map")
    order = order_of(originals)

    prefix = f"{scope}/" if scope else ""
    names = {node: rename(node.name) if rename is not None else prefix + node.name for node in order}
    for name in names.values():
        target.check_new_name(name)

    result = CloneResult(target, {}, values, import_functions(source, target, order))
    mapped = dict(values)
    copy_nodes(order, result, controls, lambda node: target.unique_name(names[node]))
    _follow_colocation(result, source)
    for value, variable in list(source.variables.items()):
        if value.producer in originals:
            target.variables[result.node_of[value.producer].outputs[value.index]] = variable
    if target.shapes is not None:
        target.shapes.refresh(result.node_of[node] for node in order if any(v in mapped for v in node.inputs))
        if source.shapes is not None:
            target.shapes.copy_state(source.shapes, result.node_of)
    target.versions = _of_both(target.versions, source.versions)
    return result


def copy_graph(graph: Graph) -> CloneResult:
    """Copy a graph with all that it holds: no edit of the copy changes the original. The result has the copy as `graph`."""
    copy = Graph(graph.name, versions=graph.versions)
    inside = copy_functions(graph, copy, graph.functions)[1]
    result = copy_whole(graph, copy, {})
    copy.signatures = {name: signature.of_copies(result.value_of) for name, signature in graph.signatures.items()}
    copy_collections(graph, result, plain=True)
    values = dict(result.value_of)
    for body in inside:
        values.update(body.value_of)
    copy.package = copied_package(graph.package, values)
    return result


def copied_package(package: object | None, value_of: Mapping[Value, Value]) -> object | None:
    if package is None or not is_dataclass(package) or isinstance(package, type):
        return package
    changed: dict[str, Any] = {}
    for entry in fields(package):
        held: Any = getattr(package, entry.name)
        if isinstance(held, dict):
            table = cast("dict[Any, Any]", held)
            changed[entry.name] = {value_of.get(key, key) if isinstance(key, Value) else key: item for key, item in table.items()}
    return replace(package, **changed)


def _of_both(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


def _check_inputs(originals: Mapping[Node, object], values: Mapping[Value, Value], source: Graph, target: Graph) -> None:
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
    missing = dict.fromkeys(v.name for node in originals for v in node.inputs if v.producer not in originals and v not in values)
    if missing:
        raise GraphError(
            f"nothing in graph {target.name!r} replaces {', '.join(list(missing)[:3])}"
            + (f" and {len(missing) - 3} more" if len(missing) > 3 else ""),
            where="input_map",
            remedy="map these values, or also copy the nodes that produce them",
        )


def _follow_colocation(result: CloneResult, source: Graph) -> None:
    new_name = {node.name: copy.name for node, copy in result.node_of.items()}
    same = result.graph is source
    for node, copy in result.node_of.items():
        attribute: Attribute | None = node.attrs.get(ATTRIBUTE)
        if attribute is not None:
            result.graph.set_attr(copy, ATTRIBUTE, with_names(attribute, lambda name: new_name.get(name, name if same else None)))


def copy_collections(source: Graph, result: CloneResult, *, plain: bool = False) -> None:
    """Add the copies to the collections that hold their originals; `plain` also copies items that name no node, and empty collections. A
    message is copied when all nodes that it names are.
    """
    target = result.graph
    for name, collection in list(source.collections.items()):
        copies = [copy for item in list(collection.items) if (copy := _copied_item(item, result, plain)) is not None]
        if copies or plain:
            if name not in target.collections:
                target.collections[name] = Collection(collection.kind)
            target.collections[name].items += copies


def _copied_item(item: object, result: CloneResult, plain: bool) -> object | None:
    if isinstance(item, Node):
        return result.node_of.get(item)
    if isinstance(item, Value):
        return result.value_of.get(item) if item.producer in result.node_of else None
    if not isinstance(item, NamedRefs):
        return item if plain else None
    if not item.refs and not plain:
        return None
    refs: dict[str, Value | Node] = {}
    for path, held in item.refs.items():
        copy = _copied_item(held, result, plain)
        if not isinstance(copy, Value | Node):
            return None
        refs[path] = copy
    return NamedRefs(item.serialized, refs)
