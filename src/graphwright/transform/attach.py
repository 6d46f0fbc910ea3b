"""Copy a whole graph into another one: nodes, functions, collections, and the variables, tables and assets in its files.

Two models may use the same names for different things. A scope separates the names of nodes and functions, of variables and tables in a
session (`shared_name`), and the keys in the checkpoint.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, runtime_checkable

from graphwright.errors import ArgumentError
from graphwright.ir.edit.clone import CloneResult, clone, copy_collections, copy_graph
from graphwright.ir.edit.library import bodies, rename_functions
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.names import free_name
from graphwright.ir.traits.variables import VARIABLES, opens_variable
from graphwright.ir.walk import backward_reachable
from graphwright.transform.interface import output_values

_SCOPE = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*", re.ASCII)
"""TensorFlow's rule for scopes."""


@runtime_checkable
class HoldsFiles(Protocol):
    """The methods of `Graph.package` that this layer, which knows no files, calls."""

    @property
    def is_live(self) -> bool:
        """Whether the variables belong to a live function instead of files."""
        ...

    @property
    def has_files(self) -> bool:
        """Whether there are files of variables and assets."""
        ...

    def functions_of_state(self) -> Collection[str]:
        """Return the functions that loading calls to create, fill and restore tables and other resources."""
        ...

    def with_files(self, graph: Graph) -> Graph:
        """Save the live function of a graph, and return the graph read from these files."""
        ...

    def prepare_join(self, graph: Graph, other: Graph, *, scope: str, signatures: Mapping[str, str]) -> Callable[[CloneResult], None]:
        """See `source.join.prepare_join`."""
        ...


def holds_values(graph: Graph) -> bool:
    """Whether the values of the graph's variables are available."""
    package = graph.package
    return isinstance(package, HoldsFiles) and (package.is_live or package.has_files)


def check_values(graph: Graph) -> None:
    """Refuse variables whose values are not available."""
    if holds_values(graph):
        return
    for node in backward_reachable(value.producer for value in output_values(graph)):
        if node.op_type in VARIABLES:
            raise ArgumentError(
                f"the graph holds the variable {node.name!r}, whose value would be lost",
                where=f"graph {graph.name!r}",
                cause="a graph alone does not say what its variables hold",
                remedy="load the SavedModel, Keras model or function that holds them, or freeze the variables first (freeze_variables)",
            )


def in_files(graph: Graph) -> Graph:
    """Return the graph; if it comes from a live function, a copy whose variables are in files."""
    package = graph.package
    return package.with_files(graph) if isinstance(package, HoldsFiles) else graph


class Attachment:
    """A checked copy of one graph that can be attached to another. Until then, the other graph does not change.

    Args:
        scope: the scope of the copy's names, free in `graph`.
        signatures: signature of `other` that is kept -> its new name.

    Raises:
        ArgumentError: the scope is not a name, or names of variables or tables in a session start with it; or the values of the
            variables are available for one graph only.
        GraphwrightError: the files cannot be joined; see `source.join.prepare_join`.
    """

    def __init__(self, graph: Graph, other: Graph, scope: str, *, signatures: Mapping[str, str] | None = None) -> None:
        if not _SCOPE.fullmatch(scope):
            raise ArgumentError(f"{scope!r} cannot be a scope", argument="scope", remedy="use letters, digits, _, - and . between /")
        for one, another in ((graph, other), (other, graph)):
            if holds_values(another):
                check_values(one)
        taken = next((n for body in bodies(graph) for n in body if _shared_name(n).startswith(f"{scope}/".encode())), None)
        if taken is not None:
            raise ArgumentError(
                f"{taken.name!r} has the shared name {_shared_name(taken).decode('utf-8', 'replace')!r} in a session",
                argument="scope",
                remedy="give another scope",
            )
        self._graph = graph
        self._scope = scope
        self._copied = copy_graph(other)
        twin = self._twin = self._copied.graph
        names = {*graph.functions, *twin.functions}
        new_of: dict[str, str] = {}
        for name in [name for name in twin.functions if name in graph.functions]:
            new_of[name] = free_name(name, names)
            names.add(new_of[name])
        rename_functions(twin, new_of)
        holders = [package for package in (graph.package, twin.package) if isinstance(package, HoldsFiles)]
        self._finish = holders[0].prepare_join(graph, twin, scope=scope, signatures=signatures or {}) if holders else None
        _rename_shared(twin, scope)

    def attach(
        self,
        input_map: Mapping[Value, Value],
        *,
        left_out: Collection[Node] = (),
        rename: Callable[[str], str] | None = None,
        plain_collections: bool = False,
    ) -> CloneResult:
        """Copy everything into the graph, once; return the copies of the nodes and values of the other graph.

        Args:
            input_map: value of the other graph -> the value of this graph that replaces it.
            left_out: nodes of the other graph that are not copied.
            rename: name -> new name, instead of the scope as a prefix.
            plain_collections: whether to copy items of collections that name no node.
        """
        graph, twin, first = self._graph, self._twin, self._copied
        for function in twin.functions.values():
            function.body.functions = graph.functions
            function.body.take_rules(graph)
        graph.functions.update(twin.functions)
        twin.functions = graph.functions
        skipped = {first.node_of[node] for node in left_out}
        result = clone(
            [node for node in twin.nodes if node not in skipped],
            into=graph,
            input_map={first.value_of[old]: new for old, new in input_map.items()},
            scope=self._scope,
            rename=rename,
        )
        copy_collections(twin, result, plain=plain_collections)
        if self._finish is not None:
            self._finish(result)
        return CloneResult(
            graph,
            {old: result.node_of[node] for old, node in first.node_of.items() if node in result.node_of},
            {old: result.value_of[value] for old, value in first.value_of.items() if value in result.value_of},
        )


def _rename_shared(graph: Graph, scope: str) -> None:
    """Give variables, tables and queues their own names in a session, in functions too."""
    for body in bodies(graph):
        for node in body:
            shared = _shared_name(node)
            by_node_name = body is not graph and bool(node.attrs.get("use_node_name_sharing"))
            if "shared_name" not in node.attrs or not (shared or by_node_name or opens_variable(node)):
                continue  # without one, the name is the node's
            own = shared or (node.name.encode() if by_node_name or body is graph else b"")
            body.set_attr(node, "shared_name", f"{scope}/".encode() + own)


def _shared_name(node: Node) -> bytes:
    shared = node.attrs.get("shared_name")
    return shared if isinstance(shared, bytes) else b""
