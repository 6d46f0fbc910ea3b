"""`simplify`: a graph without what is computed twice, what is known before it runs, and what does nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from typing import Unpack

from graphwright.analyze.flops import node_flops
from graphwright.analyze.traffic import bytes_moved
from graphwright.errors import GraphwrightError
from graphwright.ir.constants import told_shapes
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.edit.inline import inline
from graphwright.ir.edit.library import bodies, reached_functions, remove_unused_functions
from graphwright.ir.edit.prune import prune, remove_unread
from graphwright.ir.given import Written, edits_in_place
from graphwright.ir.graph import Graph, Node
from graphwright.ir.nesting import check_nesting
from graphwright.ir.signature import node_of
from graphwright.ir.traits.arithmetic import SUMS_OF_MANY
from graphwright.ir.traits.control_flow import CALL_TYPES, callee
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import MAY_BE_FED
from graphwright.ir.walk import fed_values, fetched_values
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

_ROUNDS = 8
_LARGEST_INLINED = 2_000
"""Nodes of a function that is called in several places, and takes the place of each call."""
_LARGEST_IN_FILES = 100
"""The same in a SavedModel, whose objects keep the function too."""
_KEPT_CALLS = ("_gradient_op_type", "_XlaMustCompile", "_noinline", "_implements", "api_implements")


@dataclass(frozen=True, slots=True)
class SimplifyReport(Result):
    """What `simplify` found.

    Attributes:
        found: how many nodes, by kind of what was found.
        nodes_before: nodes of the graph, and of its functions, each once.
        nodes_after: and after.
        run_before: nodes that are run where everything is fetched, calls counted as what they call.
        run_after: and after.
        flops_before: what they compute; `how` says for which sizes, and how many nodes could not be counted.
        flops_after: and after.
        bytes_before: bytes that they read and write.
        bytes_after: and after.
        how: how the figures were obtained.
        proof: how it was proved that the graph computes the same.
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
    """Take out of a graph what is computed twice, what is known before it runs, and what does nothing; in functions and loops too.

    - *Merged*: what does the same as something else: the same operation, attributes and inputs (in either order where that makes no
      difference), constants by value, reads of a variable with no write that may come between.
    - *Folded*: what depends on constants or static shapes alone, where the result is at most 4,096 bytes, so that a model does not grow.
    - *Branches* that a constant decides, loops that never run.
    - *Neutral*: identities, transposes and reshapes that undo each other, broadcasts, casts and arithmetic that change nothing.
    - What nothing reads then.

    Never touched are what has effects or is random, clones that rematerialization made, and what has a gradient of its own. What is
    fetched keeps its name, variables stay variables. Where this raises, the graph is as it was.

    Args:
        inline_functions: whether functions take the place of their calls where they are called once, or have at most 2,000 nodes, so that
            what is equal is found across their borders.
        prove: run both sides of each neutral rewrite on random values, once per combination of shapes. Merges and the rest are not run;
            `verify` compares whole graphs.

    Returns:
        What was found, by kind, nodes, FLOPs and bytes before and after, and how they were obtained.

    Raises:
        GraphError: nodes wait for each other; with `prove`, both sides of a rewrite differ.
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
    found: Counter[str] = Counter()
    names = _names_to_keep(graph)
    given = {body: body.control_outputs for body in names}
    with graph.restored_on_error():
        for body, kept in names.items():  # what is a control output is left alone by all that follows
            body.control_outputs = dict.fromkeys((*body.control_outputs, *(body[name] for name in kept)))
        rules = _traced_rules()
        for _ in range(_ROUNDS):
            in_round: Counter[str] = Counter()
            types = stateful_op_types(graph)  # once, since it looks at all nodes; what rules add, they know themselves
            if inline_functions:
                in_round["calls inlined"] = _inline(graph, Purity(graph, types))
            for body in _reached(graph):
                in_round.update(_simplify_body(body, graph, _kept(body, names), types))
            everywhere = frozenset[Node]().union(*(_kept(body, names) for body in names))
            done, _ = rewrite_graph(graph, rules, _purity(graph), check=proof, kept=everywhere)
            in_round.update(item.rule for item in done)
            in_round["identities"] += remove_debug_ops(graph, op_types=(), purity=_purity(graph))
            purity = _purity(graph)
            for body in _reached(graph):
                in_round["not read"] += _drop_unread(body, purity)
            found += in_round
            if not +in_round:
                break
        for body, kept in names.items():
            body.control_outputs = [node for node in body.control_outputs if node in given[body] or node.name not in kept]
        _drop_functions(graph)
    after = _figures(graph)
    how = f"counted by formula, {before.how}, calls as what they call, bodies of loops and branches once"
    if before.unknown or after.unknown:
        how += f"; without {before.unknown:,} nodes before and {after.unknown:,} after, whose FLOPs or bytes are not known"
    told = f"merged, folded and inlined: by rules that keep what is computed, not checked again; neutral rewrites: {proof or 'not run'}"
    sums = sum(node.op_type in SUMS_OF_MANY and len(node.inputs) > 2 for body in bodies(graph) for node in body)
    told += f"; {sums:,} sums of three and more terms (AddN) may add them in another order, by who else reads a term" if sums else ""
    return SimplifyReport(
        dict(+found),
        in_file,
        sum(map(len, bodies(graph))),
        before.nodes,
        after.nodes,
        before.flops,
        after.flops,
        before.nbytes,
        after.nbytes,
        how,
        told,
    )


@cache
def _traced_rules() -> list[GraphRule]:
    return [rule.on_graphs() for rule in neutral_rules()]


def _purity(graph: Graph) -> Purity:
    return Purity(graph, stateful_op_types(graph))


def _has_objects(graph: Graph) -> bool:
    """Whether the graph comes from a SavedModel, whose objects name functions and constants."""
    return isinstance(graph.package, Package) and graph.package.has_files


def _reached(graph: Graph) -> list[Graph]:
    """The graph and the bodies of the functions that it reaches, or that its file calls by name, callees first."""
    names = list(graph.functions) if _has_objects(graph) else reached_functions(graph, graph.nodes)
    return [*(graph.functions[name].body for name in names), graph]


def _names_to_keep(graph: Graph) -> dict[Graph, set[str]]:
    """By graph, the nodes that are known by their names: what nothing reads may be fetched by it, and objects of a SavedModel name some."""
    by_function = nodes_named_by_objects(graph.package) if isinstance(graph.package, Package) else {}
    names = {graph.functions[name].body: kept for name, kept in by_function.items() if name in graph.functions}
    names[graph] = set(by_function.get("", ()))
    if not graph.control_outputs:
        names[graph] |= {n.name for n in graph if not n.control_consumers and not any(value.uses for value in n.outputs)}
    return {body: {name for name in kept if name in body} for body, kept in names.items()}


def _kept(body: Graph, names: Mapping[Graph, AbstractSet[str]]) -> frozenset[Node]:
    """The nodes of a graph that transforms leave alone."""
    known = [body[name] for name in names.get(body, ()) if name in body]
    if body in names:
        known += [value.producer for value in (*fed_values(body), *fetched_values(body))]
    return frozenset(known)


def _drop_functions(graph: Graph) -> None:
    """Remove the functions that nothing names any more."""
    if _has_objects(graph):
        return
    rest = graph.package.graph_rest if isinstance(graph.package, Package) else b""
    remove_unused_functions(graph, called=[name for name in graph.functions if name.encode() in rest])


def _simplify_body(body: Graph, graph: Graph, kept: AbstractSet[Node], types: dict[str, bool]) -> Counter[str]:
    found: Counter[str] = Counter()
    found["branches"] += take_known_branches(body, Purity(graph, types), kept=kept)
    if body is not graph:
        found["identities"] += split_identities(body, gradients=False)
    foldable = Purity(body, {op: "Random" in op or not only_computes(op) for op in types})
    found["constants folded"] += fold_shapes(body) if body is not graph or not any(told_shapes(node) for node in kept) else 0
    found["constants folded"] += fold_constants(body, foldable, evaluate_constants(body), kept=kept)
    found["reshapes"] += cancel_reshapes(body, kept=kept)
    found.update(merge_equal(body, Purity(graph, types), kept=kept))
    if found.total():
        put_in_order(body)
    return found


def _inline(graph: Graph, purity: Purity) -> int:
    """Put functions in the place of their calls, in all that is reached, callees first."""
    counts = Counter(callee(node) for body in bodies(graph) for node in body if node.op_type in CALL_TYPES)
    return sum(_inline_in(body, graph, purity, counts) for body in _reached(graph))


def _inline_in(body: Graph, graph: Graph, purity: Purity, counts: Counter[str]) -> int:
    waiting = [node for node in body.nodes if node.op_type in CALL_TYPES]
    if not waiting:
        return 0
    held = {node_of(item) for collection in body.collections.values() for item in collection.references()}
    done = 0
    largest = _LARGEST_IN_FILES if _has_objects(graph) else _LARGEST_INLINED
    for call in waiting:  # grows while it is walked
        function = graph.functions.get(callee(call))
        if call in held or function is None or function.body is body or any(call.attrs.get(name) for name in _KEPT_CALLS):
            continue
        if any(name in function.definition for name in (b"_noinline", b"implements", b"_XlaMustCompile")):
            continue
        if len(function.body) > largest and (counts[callee(call)] > 1 or _has_objects(graph)):
            continue
        made = inline(call, purity=purity).nodes
        inner = [node for node in made if node.op_type in CALL_TYPES]
        counts.subtract([callee(call)])
        counts.update(map(callee, inner))
        waiting += inner
        done += 1
    if done:
        put_in_order(body)
    return done


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
    """What a graph runs, and what that computes and moves."""
    copy = copy_graph(graph).graph
    inline_calls(copy, _purity(copy), strict=False)
    outputs = fetched_values(copy)
    if outputs or copy.control_outputs:
        inputs = fed_values(copy)
        copy.inputs = inputs
        prune(copy, outputs, signatures=False, collections=False)
    how = "for the shapes of the graph"
    opened = {k: value.shape for k, value in enumerate(copy.inputs) if value.shape is not None and None in value.shape}
    if opened or any(value.last_shape is None for node in copy for value in node.outputs):
        how = "open sizes taken as 1" if opened else how
        try:
            infer_flat_shapes(copy, {k: tuple(d or 1 for d in shape or ()) for k, shape in opened.items()})
        except GraphwrightError:
            how = "for the shapes that are known"
    inner = [node for name in reached_functions(copy, copy.nodes) for node in copy.functions[name].body]
    nodes = [*copy.nodes, *inner]
    flops, nbytes = [node_flops(node) for node in nodes], [bytes_moved(node) for node in nodes]
    unknown = sum(a is None or b is None for a, b in zip(flops, nbytes, strict=True))
    return _Figures(len(nodes), float(sum(filter(None, flops))), float(sum(filter(None, nbytes))), unknown, how)
