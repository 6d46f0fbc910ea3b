"""`simplify`: remove repeated and constant computations, and operations that change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import Unpack

from graphwright.errors import GraphwrightError
from graphwright.ir.constants import shape_query_results
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.edit.inline import inline
from graphwright.ir.edit.library import bodies, reached_functions, remove_unused_functions
from graphwright.ir.edit.prune import prune, remove_unread
from graphwright.ir.graph import Graph, Node
from graphwright.ir.jobs import Written, edits_in_place
from graphwright.ir.nesting import check_nesting
from graphwright.ir.signature import node_of
from graphwright.ir.traits.arithmetic import SUMS_OF_MANY
from graphwright.ir.traits.control_flow import CALL_TYPES, callee
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import MAY_BE_FED
from graphwright.ir.walk import fed_values, fetched_values
from graphwright.ops.flops import node_flops
from graphwright.ops.traffic import bytes_moved
from graphwright.plain import Result
from graphwright.report.units import format_bytes, format_flops
from graphwright.reuse.neutral_rules import neutral_rules
from graphwright.reuse.rule_proof import RuleProof
from graphwright.source.concrete_function import evaluate_constants
from graphwright.source.never_run import only_computes
from graphwright.source.object_graph import nodes_named_by_objects
from graphwright.source.package import Package
from graphwright.step.flatten import stateful_op_types
from graphwright.step.infer_shapes import infer_flat_shapes
from graphwright.transform.cancel_reshapes import cancel_reshapes
from graphwright.transform.common_subexpressions import merge_equal
from graphwright.transform.fold_constants import fold_constants, fold_shapes
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.interface import put_in_order
from graphwright.transform.known_branches import take_known_branches
from graphwright.transform.remove_debug_ops import remove_debug_ops
from graphwright.transform.rewrite import GraphRule, rewrite_graph
from graphwright.transform.split_identities import split_identities

_MOST_ROUNDS = 8
_LARGEST_INLINED = 2_000
"""Nodes of a function that is inlined although it is called in several places."""

_LARGEST_IN_FILES = 100
"""The same in a SavedModel, whose objects keep the function as well."""

_NOT_INLINED = ("_gradient_op_type", "_XlaMustCompile", "_noinline", "_implements", "api_implements")


@dataclass(frozen=True, slots=True)
class SimplifyReport(Result):
    """The result of `simplify`.

    Attributes:
        found: the number of nodes, by kind of simplification.
        nodes_before: nodes of the graph and of its functions, each once.
        nodes_after: and after.
        run_before: nodes that run if everything is fetched, with calls expanded.
        run_after: and after.
        flops_before: their FLOPs; `how` tells for which sizes, and how many nodes could not be counted.
        flops_after: and after.
        bytes_before: bytes that they read and write.
        bytes_after: and after.
        how: how the figures were obtained.
        proof: how equality was checked.
    """

    found: Mapping[str, int]
    nodes_before: int
    nodes_after: int
    run_before: int
    run_after: int
    flops_before: float
    flops_after: float
    bytes_before: float
    bytes_after: float
    how: str
    proof: str

    def __str__(self) -> str:
        lines = [f"{self.run_before:,} -> {self.run_after:,} nodes run; {self.nodes_before:,} -> {self.nodes_after:,} in the file"]
        lines.append(f"FLOPs: {format_flops(self.flops_before)} -> {format_flops(self.flops_after)}")
        lines.append(f"bytes read and written: {format_bytes(self.bytes_before)} -> {format_bytes(self.bytes_after)}")
        lines += [f"  {kind}: {count:,}" for kind, count in sorted(self.found.items(), key=lambda item: -item[1])]
        return "\n".join([*lines, f"proof: {self.proof}", f"figures: {self.how}"])


@edits_in_place
def simplify(graph: Graph, *, inline_functions: bool = True, prove: bool = True, **written: Unpack[Written]) -> SimplifyReport:
    """Remove repeated and constant computations, and operations that change nothing, in functions and loops too.

    - *Merged*: operations with equal attributes and inputs (in either order if they commute), equal constants, and reads of a variable
      without a possible write between.
    - *Folded*: results of at most 4,096 bytes that depend on constants or static shapes only.
    - *Branches* with a constant condition, loops that never run.
    - *Neutral*: identities, transposes and reshapes that cancel, broadcasts, casts and arithmetic that change nothing.
    - Nodes that become unused.

    Operations with effects, random operations, clones made by rematerialization, and operations with a custom gradient are not changed.
    Fetched nodes keep their names, variables stay variables. If this raises, the graph is unchanged.

    Args:
        inline_functions: replace calls by the bodies of functions that are called once or have at most 2,000 nodes, to find equal
            operations across their borders.
        prove: run both sides of each neutral rewrite on random values, once per combination of shapes. Merges and folds are not run;
            `verify` compares whole graphs.

    Returns:
        The simplifications by kind; nodes, FLOPs and bytes before and after, and how they were obtained.

    Raises:
        GraphError: the graph has a cycle; with `prove`, the sides of a rewrite differ.
        UnsupportedError: functions call themselves.

    >>> import tensorflow as tf
    >>> import graphwright as gw
    >>> twice = tf.function(lambda x: tf.sin(x * 1.0) + tf.sin(tf.transpose(tf.transpose(x))))
    >>> graph = gw.load(twice.get_concrete_function(tf.TensorSpec([2, 3])))
    >>> report = simplify(graph)
    >>> [node.op_type for node in graph], report.found["merged"], report.flops_before, report.flops_after
    (['Placeholder', 'Sin', 'AddV2', 'Identity'], 1, 24.0, 12.0)
    """
    check_nesting(graph)
    before, in_file = _figures(graph), sum(map(len, bodies(graph)))
    proof = RuleProof(strict=False) if prove else None
    counts: Counter[str] = Counter()
    names = _names_to_keep(graph)
    control_outputs = {body: body.control_outputs for body in names}
    with graph.restored_on_error():
        for body, kept in names.items():  # transforms leave control outputs alone
            body.control_outputs = dict.fromkeys((*body.control_outputs, *(body[name] for name in kept)))
        for _ in range(_MOST_ROUNDS):
            in_round = _simplify_once(graph, names, inline_functions, proof)
            counts += in_round
            if not +in_round:
                break
        for body, kept in names.items():
            body.control_outputs = [node for node in body.control_outputs if node in control_outputs[body] or node.name not in kept]
        _drop_functions(graph)
    after = _figures(graph)
    how = f"counted by formula, {before.how}, calls as what they call, bodies of loops and branches once"
    if before.unknown or after.unknown:
        how += f"; without {before.unknown:,} nodes before and {after.unknown:,} after, whose FLOPs or bytes are not known"
    checks = f"merged, folded and inlined: by rules that keep what is computed, not checked again; neutral rewrites: {proof or 'not run'}"
    sums = sum(node.op_type in SUMS_OF_MANY and len(node.inputs) > 2 for body in bodies(graph) for node in body)
    if sums:
        checks += f"; {sums:,} sums of three and more terms (AddN) may add them in another order, by who else reads a term"
    return SimplifyReport(
        found=dict(+counts),
        nodes_before=in_file,
        nodes_after=sum(map(len, bodies(graph))),
        run_before=before.nodes,
        run_after=after.nodes,
        flops_before=before.flops,
        flops_after=after.flops,
        bytes_before=before.nbytes,
        bytes_after=after.nbytes,
        how=how,
        proof=checks,
    )


def _simplify_once(graph: Graph, names: Mapping[Graph, AbstractSet[str]], inline_functions: bool, proof: RuleProof | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    types = stateful_op_types(graph)  # once, because it looks at all nodes; rules know the types that they add
    if inline_functions:
        counts["calls inlined"] = _inline(graph, Purity(graph, types))
    for body in _reached(graph):
        counts.update(_simplify_body(body, graph, _kept(body, names), types))
    everywhere = frozenset[Node]().union(*(_kept(body, names) for body in names))
    applied, _ = rewrite_graph(graph, _traced_rules(), _purity(graph), check=proof, kept=everywhere)
    counts.update(item.rule for item in applied)
    counts["identities"] += remove_debug_ops(graph, op_types=(), purity=_purity(graph))
    purity = _purity(graph)
    for body in _reached(graph):
        counts["not read"] += _drop_unread(body, purity)
    return counts


@cache
def _traced_rules() -> list[GraphRule]:
    return [rule.on_graphs() for rule in neutral_rules()]


def _purity(graph: Graph) -> Purity:
    return Purity(graph, stateful_op_types(graph))


def _has_objects(graph: Graph) -> bool:
    """Return whether the graph comes from a SavedModel, whose objects name functions and constants."""
    return isinstance(graph.package, Package) and graph.package.has_files


def _reached(graph: Graph) -> list[Graph]:
    """Return the bodies of all functions that the graph or the objects of its file use, callees first, then the graph."""
    names = list(graph.functions) if _has_objects(graph) else reached_functions(graph, graph.nodes)
    return [*(graph.functions[name].body for name in names), graph]


def _names_to_keep(graph: Graph) -> dict[Graph, set[str]]:
    """Return, by graph, the nodes that are known by name: unread nodes may be fetched, and objects of a SavedModel name some."""
    by_function = nodes_named_by_objects(graph.package) if isinstance(graph.package, Package) else {}
    names = {graph.functions[name].body: kept for name, kept in by_function.items() if name in graph.functions}
    names[graph] = set(by_function.get("", ()))
    if not graph.control_outputs:
        names[graph] |= {n.name for n in graph if not n.control_consumers and not any(value.use_count for value in n.outputs)}
    return {body: {name for name in kept if name in body} for body, kept in names.items()}


def _kept(body: Graph, names: Mapping[Graph, AbstractSet[str]]) -> frozenset[Node]:
    if body not in names:
        return frozenset()
    borders = (value.producer for value in (*fed_values(body), *fetched_values(body)))
    return frozenset((*(body[name] for name in names[body] if name in body), *borders))


def _drop_functions(graph: Graph) -> None:
    if _has_objects(graph):
        return
    rest = graph.package.graph_rest if isinstance(graph.package, Package) else b""
    remove_unused_functions(graph, called=[name for name in graph.functions if name.encode() in rest])


def _simplify_body(body: Graph, graph: Graph, kept: AbstractSet[Node], types: dict[str, bool]) -> Counter[str]:
    counts: Counter[str] = Counter()
    counts["branches"] += take_known_branches(body, Purity(graph, types), kept=kept)
    if body is not graph:
        counts["identities"] += split_identities(body, gradients=False)
    foldable = Purity(body, {op: "Random" in op or not only_computes(op) for op in types})
    counts["constants folded"] += fold_shapes(body) if body is not graph or not any(shape_query_results(node) for node in kept) else 0
    counts["constants folded"] += fold_constants(body, foldable, evaluate_constants(body), kept=kept)
    counts["reshapes"] += cancel_reshapes(body, kept=kept)
    counts.update(merge_equal(body, Purity(graph, types), kept=kept))
    if counts.total():
        put_in_order(body)
    return counts


def _inline(graph: Graph, purity: Purity) -> int:
    counts = Counter(callee(node) for body in bodies(graph) for node in body if node.op_type in CALL_TYPES)
    return sum(_inline_in(body, graph, purity, counts) for body in _reached(graph))


def _inline_in(body: Graph, graph: Graph, purity: Purity, counts: Counter[str]) -> int:
    waiting = [node for node in body.nodes if node.op_type in CALL_TYPES]
    if not waiting:
        return 0
    collected = {node_of(item) for collection in body.collections.values() for item in collection.references()}
    inlined = 0
    largest = _LARGEST_IN_FILES if _has_objects(graph) else _LARGEST_INLINED
    for call in waiting:  # grows during the loop
        function = graph.functions.get(callee(call))
        if call in collected or function is None or function.body is body or any(call.attrs.get(name) for name in _NOT_INLINED):
            continue
        if any(name in function.definition for name in (b"_noinline", b"implements", b"_XlaMustCompile")):
            continue
        if len(function.body) > largest and (counts[callee(call)] > 1 or _has_objects(graph)):
            continue
        inner = [node for node in inline(call, purity=purity).nodes if node.op_type in CALL_TYPES]
        counts.subtract([callee(call)])
        counts.update(map(callee, inner))
        waiting += inner
        inlined += 1
    if inlined:
        put_in_order(body)
    return inlined


def _drop_unread(body: Graph, purity: Purity) -> int:
    before = len(body)
    remove_unread(body, body.nodes, lambda node: purity.is_pure(node) and node.op_type not in MAY_BE_FED and not body.collections_of(node))
    return before - len(body)


@dataclass(frozen=True, slots=True)
class _Figures:
    nodes: int
    flops: float
    nbytes: float
    unknown: int
    how: str


def _figures(graph: Graph) -> _Figures:
    copy = copy_graph(graph).graph
    inline_calls(copy, _purity(copy), strict=False)
    outputs = fetched_values(copy)
    if outputs or copy.control_outputs:
        copy.inputs = fed_values(copy)
        prune(copy, outputs, signatures=False, collections=False)
    how = "for the shapes of the graph"
    open_shapes = {k: value.shape for k, value in enumerate(copy.inputs) if value.shape is not None and None in value.shape}
    if open_shapes or any(value.last_shape is None for node in copy for value in node.outputs):
        how = "open sizes taken as 1" if open_shapes else how
        try:
            infer_flat_shapes(copy, {k: tuple(d or 1 for d in shape or ()) for k, shape in open_shapes.items()})
        except GraphwrightError:
            how = "for the shapes that are known"
    inner = [node for name in reached_functions(copy, copy.nodes) for node in copy.functions[name].body]
    nodes = [*copy.nodes, *inner]
    flops, nbytes = [node_flops(node) for node in nodes], [bytes_moved(node) for node in nodes]
    unknown = sum(a is None or b is None for a, b in zip(flops, nbytes, strict=True))
    return _Figures(len(nodes), float(sum(filter(None, flops))), float(sum(filter(None, nbytes))), unknown, how)
