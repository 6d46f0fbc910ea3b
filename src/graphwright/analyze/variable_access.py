"""Find which nodes read and write each variable, through functions, control flow and references of TF1."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import BRANCHES, MERGES, called_functions, callee, is_call, is_control_flow, is_control_flow_of_tf1
from graphwright.ir.traits.effects import has_known_effects
from graphwright.ir.traits.values import IDENTITIES
from graphwright.ir.traits.variables import (
    ASSIGNS_WHOLE_VALUE,
    LEAVES_VALUES_ALONE,
    READS_OF_VALUES,
    VARIABLES,
    accesses_rows,
    is_read,
    updates_whole_value,
    variable_key,
    written_references,
    written_resources,
)
from graphwright.ir.walk import backward_reachable, reached


@dataclass(frozen=True, slots=True)
class Access:
    """A node that reads or writes a variable, perhaps in a function; `top` is the node of the graph that is, or calls, it, and `path` the
    names of the nodes from there, joined by "/".
    """

    key: str
    node: Node
    top: Node
    path: str
    reads: bool
    writes: bool


class _Found(NamedTuple):
    """An access in a body; `of` is the key of a variable, or the position of an argument."""

    of: str | int
    node: Node
    path: str
    reads: bool
    writes: bool


@dataclass(slots=True)
class _Summary:
    """The accesses of a function to its arguments, and the arguments that it returns."""

    found: list[_Found] = field(default_factory=list["_Found"])
    results: dict[int, list[int]] = field(default_factory=dict[int, list[int]])


def find_accesses(graph: Graph, variables: Mapping[Value, str], needed: AbstractSet[Node] | None = None) -> list[Access]:
    """Return all accesses of the graph's nodes and of the functions they call, in the order of the graph.

    Args:
        variables: key by handle, reference or input of the graph.
        needed: the nodes that run; all by default.
    """
    place = {node: k for k, node in enumerate(graph.nodes)}
    reader = _Reader(graph)
    known: dict[Value, str | int] = dict(variables)
    accesses = [
        Access(str(found.of), found.node, top, found.path, found.reads, found.writes)
        for top, found in reader.look(graph, known, place.keys() if needed is None else needed)[0]
    ]
    return sorted(accesses, key=lambda access: place[access.top])


def copied_variables(graph: Graph) -> tuple[frozenset[Value], frozenset[Node]]:
    """Return the variables that TensorFlow copies because some node accesses rows of them, and the nodes that copy them.

    The first access by rows puts a variable into *copy-on-read mode* (core/framework/resource_var.h). From then on each read of the
    whole value is a copy, and an update in place writes into a copy. An assignment copies its value into a new buffer, which takes no more
    memory. The first run of a step may make other copies.
    """
    if not any(map(accesses_rows, chain(graph.nodes, *(f.body.nodes for f in graph.functions.values())))):
        return frozenset(), frozenset()
    keys = {value: variable_key(value) for value in graph.variables}
    accesses = find_accesses(graph, keys)
    by_rows = {access.key for access in accesses if accesses_rows(access.node)}
    copying = {a.node for a in accesses if a.key in by_rows and (is_read(a.node) or updates_whole_value(a.node)) and copied_bytes(a.node)}
    return frozenset(value for value, key in keys.items() if key in by_rows), frozenset(copying)


def copied_bytes(node: Node) -> int:
    """Return the bytes of the variable that a node copies; 0 if unknown."""
    return max((value.nbytes or 0 for value in node.outputs or node.inputs), default=0)


class _Reader:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._summaries: dict[str, _Summary] = {}

    def look(
        self, body: Graph, seeds: Mapping[Value, str | int], needed: AbstractSet[Node]
    ) -> tuple[list[tuple[Node, _Found]], dict[Value, str | int]]:
        """Return the accesses in a body, each with the node of the body that leads to it, and all values that are a variable."""
        accesses: list[tuple[Node, _Found]] = []
        of: dict[Value, str | int] = {}
        stack = list(seeds.items())
        results = frozenset(body.outputs)
        for node in needed if self._graph.functions else ():
            for name in dict.fromkeys(called_functions(node)):  # variables that functions make themselves
                accesses += [(node, _below(node, inner, inner.of)) for inner in self._summary(name).found if isinstance(inner.of, str)]
        while stack:
            value, key = stack.pop()
            if value in of:
                continue
            of[value] = key
            for use in value.uses:
                node = use.node
                if node not in needed:
                    continue
                handed_on = _handed_on(node, use.index, value)
                if handed_on is not None:
                    stack += [(v, key) for v in handed_on]
                    if value.dtype.name == "resource" or _is_by_reference(node):
                        continue
                arguments = list(function_arguments(node, use.index, self._graph))
                for name, position in arguments:
                    summary = self._summary(name)
                    accesses += [(node, _below(node, inner, key)) for inner in summary.found if inner.of == position]
                    stack += [(node.outputs[k], key) for k in summary.results.get(position, ()) if k < len(node.outputs)]
                if arguments:
                    continue
                reads, writes = _does(node, use.index, value, results, needed)
                if reads or writes:
                    accesses.append((node, _Found(key, node, node.name, reads, writes)))
        return accesses, of

    def _summary(self, name: str) -> _Summary:
        if name in self._summaries:
            return self._summaries[name]
        summary = self._summaries[name] = _Summary()  # empty for a function that calls itself
        function = self._graph.functions.get(name)
        if function is None:
            return summary
        body = function.body
        seeds: dict[Value, str | int] = {v: k for k, v in enumerate(body.inputs) if v.dtype.name == "resource"}
        needed = run_nodes(body)
        seeds.update({n.outputs[0]: variable_key(n.outputs[0]) for n in needed if n.op_type in VARIABLES})
        found, of = self.look(body, seeds, needed)
        unique = {(f.of, f.node, f.reads, f.writes): f for _, f in found}
        summary.found = list(unique.values())
        for k, value in enumerate(body.outputs):
            source = of.get(value)
            if isinstance(source, int):
                summary.results.setdefault(source, []).append(k)
        return summary


def run_nodes(body: Graph) -> set[Node]:
    """Return the nodes of a function's body that a call runs."""
    seeds = [*(v.producer for v in body.outputs), *body.control_outputs]
    if not body.control_outputs:
        seeds += [node for node in body.nodes if has_known_effects(node) or called_functions(node)]
    return backward_reachable(seeds)


def _below(node: Node, inner: _Found, of: str | int) -> _Found:
    return inner._replace(of=of, path=f"{node.name}/{inner.path}")


def _is_by_reference(node: Node) -> bool:
    return node.op_type.startswith("Ref")


def _handed_on(node: Node, index: int, value: Value) -> Iterable[Value] | None:
    if value.dtype.name != "resource" and not _is_by_reference(node):
        return None
    if node.op_type in IDENTITIES:
        return node.outputs[index : index + 1]
    if is_control_flow_of_tf1(node) or _is_by_reference(node):
        return [v for v in node.outputs if v.dtype.name == value.dtype.name] if index == 0 or node.op_type in MERGES else []
    return None


def function_arguments(node: Node, index: int, graph: Graph) -> Iterator[tuple[str, int]]:
    """Yield the functions that receive the input of a node, and its position among their arguments."""
    if is_call(node, graph):
        yield callee(node), index
    elif is_control_flow(node):
        offset = 1 if node.op_type in BRANCHES else 0
        if index >= offset:
            for name in dict.fromkeys(called_functions(node)):
                yield name, index - offset


def _does(node: Node, index: int, value: Value, results: AbstractSet[Value], needed: AbstractSet[Node]) -> tuple[bool, bool]:
    op_type = node.op_type
    if op_type in LEAVES_VALUES_ALONE or index >= len(node.inputs):
        return False, False
    if op_type in ASSIGNS_WHOLE_VALUE:
        return index > 0, index == 0
    if value.dtype.name == "resource":
        if op_type in READS_OF_VALUES:
            return _is_used(node.outputs[0], results, needed), False
        if written_resources(node):
            return True, True
        return True, not called_functions(node)  # a data set that reads a variable
    if written := written_references(node):
        return True, index < len(written)
    return not node.outputs or any(_is_used(v, results, needed) for v in node.outputs), False


def _is_used(value: Value, results: AbstractSet[Value], needed: AbstractSet[Node]) -> bool:
    def handed_on(value: Value) -> Iterator[Value]:
        return (v for c in value.consumers if c in needed and c.op_type in IDENTITIES for v in c.outputs)

    copies = reached([value], handed_on)
    return any(v in results or any(c in needed and c.op_type not in IDENTITIES for c in v.consumers) for v in copies)
