"""Replace matches of patterns until none is left.

A match is left if it has effects (unless the rule allows them), holds a rematerialized clone or a node in a collection, has inner values
with outside readers (unless the rule keeps such nodes), would depend on itself, or, among TF1 branches, reads less than before and so would
run where the original did not.

Control edges follow; fetched or unread results keep their names; new nodes run on the device of the old result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass

from graphwright.errors import GraphError
from graphwright.ir.dtypes import agree, filled, format_shape
from graphwright.ir.edit.copying import CloneResult, copy_nodes
from graphwright.ir.edit.insert import add_identity
from graphwright.ir.edit.library import bodies, import_functions
from graphwright.ir.edit.prune import remove_unread
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.node import write_shape
from graphwright.ir.traits.arithmetic import type_of_today
from graphwright.ir.traits.control_flow import CONTROL_FLOW_OF_TF1, SWITCHES
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import MAY_BE_FED, RECOMPUTED_FROM, is_constant
from graphwright.ir.walk import backward_reachable, consumers_of, fetched_values, order_of, producers_of, reached
from graphwright.transform.interface import put_in_order, says_less
from graphwright.transform.match import Match, Pattern

Check = Callable[[Match, Graph], None]
"""Raises where a replacement does not compute what a match does."""


def _as_made(pattern: Pattern, captured: tuple[Value, ...]) -> Pattern | None:
    return pattern if pattern.dtypes == tuple(value.dtype for value in captured) else None


@dataclass(frozen=True, slots=True)
class GraphRule:
    """A rule on graphs.

    Attributes:
        patterns: alternatives to match.
        replacement: for a match, a graph with the inputs and outputs of the pattern; None leaves the match.
        typed: the pattern for these captured values with their dtypes, or None.
        keep_shared: whether inner values may have other readers; their nodes stay.
        effects: whether nodes with effects may be replaced.
    """

    name: str
    patterns: Sequence[Pattern]
    replacement: Callable[[Match], Graph | None]
    typed: Callable[[Pattern, tuple[Value, ...]], Pattern | None] = _as_made
    keep_shared: bool = False
    effects: bool = False


@dataclass(frozen=True, slots=True)
class Application:
    """One replacement."""

    rule: str
    node: str
    function: str = ""


@dataclass(frozen=True, slots=True)
class LeftMatch:
    """A match that was left."""

    rule: str
    node: str
    reason: str
    function: str = ""


def rewrite_graph(
    graph: Graph,
    rules: Iterable[GraphRule],
    purity: Purity,
    *,
    rounds: int = 100,
    functions: bool = True,
    check: Check | None = None,
    kept: Container[Node] = (),
) -> tuple[list[Application], list[LeftMatch]]:
    """Apply rules wherever they match, until no rule matches any more. The graph is unchanged if an error is raised.

    Of overlapping matches the first rule wins, then the first node. Raises `GraphError` if the rules do not terminate, or a replacement has
    other dtypes or shapes.

    Args:
        rounds: maximum number of passes over a graph.
        functions: whether bodies of functions are rewritten too.
        check: is called before each replacement.
        kept: nodes that must not be inner nodes of a match.
    """
    rules = list(rules)
    done: list[Application] = []
    left: dict[LeftMatch, None] = {}
    with graph.restored_on_error(), garbage_collection_paused():
        for body in bodies(graph) if functions else (graph,):
            rewriter = _Rewriter(body, rules, purity, check, "" if body is graph else body.name, kept)
            rewriter.run(rounds)
            done += rewriter.done
            applied = {(item.rule, item.node) for item in rewriter.done}
            left |= {item: None for item in rewriter.left if item.node in body and (item.rule, item.node) not in applied}
    return done, list(left)


class _Rewriter:
    def __init__(
        self,
        graph: Graph,
        rules: Sequence[GraphRule],
        purity: Purity,
        check: Check | None,
        function: str,
        kept: Container[Node],
    ) -> None:
        self._graph, self._rules, self._purity, self._check, self._function, self._kept = graph, rules, purity, check, function, kept
        self._reach = max((len(pattern.nodes) for rule in rules for pattern in rule.patterns), default=0)
        self._touched: dict[Node, None] = {}
        self._of_tf1 = any(node.op_type in CONTROL_FLOW_OF_TF1 for node in graph)
        self._switches = self._of_tf1 and any(node.op_type in SWITCHES for node in graph)
        self.done: list[Application] = []
        self.left: dict[LeftMatch, None] = {}

    def run(self, rounds: int) -> None:
        around: Collection[Node] = self._graph.nodes
        before = 0
        for _ in range(rounds):
            self._touched = {}
            before = len(self.done)
            self._sweep(around)
            if len(self.done) == before:
                break
            around = self._near([node for node in self._touched if self._graph.owns(node)])
        else:
            names = ", ".join(repr(name) for name in dict.fromkeys(item.rule for item in self.done[before:]))
            raise GraphError(
                f"after {rounds} rounds over graph {self._graph.name!r} rules still match: {names}",
                argument="rules",
                cause="a replacement contains a match of its own pattern or of another rule's",
                remedy="add a condition, or allow more rounds",
            )
        if self.done:
            put_in_order(self._graph)

    def _near(self, touched: Sequence[Node]) -> set[Node]:
        near, front = set(touched), touched
        for _ in range(self._reach):
            front = [n for node in front for n in (*producers_of(node), *consumers_of(node, control=False)) if n not in near]
            near.update(front)
        return near

    def _sweep(self, around: Iterable[Node]) -> None:
        by_type: dict[str, list[Node]] = {}
        for node in around:
            by_type.setdefault(type_of_today(node), []).append(node)
        for rule in self._rules:
            for pattern in rule.patterns:
                for node in by_type.get(type_of_today(pattern.root), ()):
                    if self._graph.owns(node):
                        self._try(rule, pattern, node)

    def _try(self, rule: GraphRule, pattern: Pattern, node: Node) -> None:
        for loose in pattern.matches_at(node, loosely=True):
            typed = rule.typed(pattern, loose.captured)
            for match in typed.matches_at(node) if typed is not None else ():
                reason = self._blocked(rule, match)
                replacement = None if reason else rule.replacement(match)
                if replacement is not None:
                    reason = self._reads_less(match, replacement)
                if reason:
                    self.left[LeftMatch(rule.name, match.replaced[0].producer.name, reason, self._function)] = None
                elif replacement is not None:
                    self._replace(rule, match, replacement)
                    return

    def _blocked(self, rule: GraphRule, match: Match) -> str:
        graph = self._graph
        matched = {node for ours, node in match.node_of.items() if not is_constant(ours)}
        replaced = set(match.replaced)
        fetched: frozenset[Value] | None = None
        for node in matched:
            if RECOMPUTED_FROM in node.attrs:
                return f"{node.name!r} was cloned on purpose, to save memory"
            if not (rule.effects or self._purity.is_pure(node)):
                return f"{node.name!r}, a {node.op_type}, may have effects"
            makes_result = any(value in replaced for value in node.outputs)
            if not makes_result and (graph.collections_of(node) or node in self._kept):
                return f"{node.name!r} is named from elsewhere"
            if rule.keep_shared and self._purity.is_pure(node):
                continue
            for value in node.outputs:
                if value in replaced:
                    continue
                reader = next((reader for reader in value.consumers if reader not in matched), None)
                if reader is not None:
                    return f"{reader.name!r} reads {value.name}, which lies in between"
                if graph.is_border(node):
                    fetched = fetched or frozenset(fetched_values(graph))
                    if value in fetched:
                        return f"{value.name}, which lies in between, is returned"
        if any(value.producer in matched for value in match.captured):
            return "a result is captured too"
        waiting = [n for node in matched for n in node.control_consumers if n not in matched]
        if waiting or len(match.replaced) > 1:
            sources = {value.producer for value in match.captured} | {c for node in matched for c in node.control_inputs}
            readers = [n for value in replaced for n in value.consumers if n not in matched]
            if any(node in sources for node in reached([*readers, *waiting], consumers_of)):
                return "it would depend on itself"
        return ""

    def _reads_less(self, match: Match, replacement: Graph) -> str:
        """Check results among TF1 branches: with fewer inputs they might run where they were dead."""
        if not self._switches:
            return ""
        pattern = match.pattern.graph
        for before, after in zip(pattern.outputs, replacement.outputs, strict=True):
            needed = backward_reachable([before.producer])
            reads = backward_reachable([after.producer])
            for ours, theirs in zip(pattern.inputs, replacement.inputs, strict=True):
                if ours.producer in needed and theirs.producer not in reads:
                    return f"its replacement would not read {match.value_of[ours].name}, which says among branches of TF1 whether it runs"
        return ""

    def _replace(self, rule: GraphRule, match: Match, replacement: Graph) -> None:
        graph = self._graph
        _check_results(rule, match, replacement)
        if self._check is not None:
            self._check(match, replacement)
        matched = dict.fromkeys(node for ours, node in match.node_of.items() if not is_constant(ours))
        old = match.replaced
        first = old[0].producer
        self.done.append(Application(rule.name, first.name, self._function))
        controls = list(dict.fromkeys(c for node in matched for c in node.control_inputs if c not in matched))
        copies, new = self._copy(match, replacement, controls)
        for before, after in zip(old, new, strict=True):
            if after.producer in copies and says_less(after.last_shape, before.last_shape):
                write_shape(after, filled(after.last_shape, before.last_shape))
                if graph.shapes is not None and all(value.last_shape is not None for value in after.producer.outputs):
                    graph.shapes.unasked.pop(after.producer, None)
        ends = [node for node in dict.fromkeys(value.producer for value in old) if not any(v.uses for v in node.outputs)]
        named = {node for node in {v.producer for v in old} if node in ends or graph.is_border(node) or graph.collections_of(node)}
        taken: dict[Node, Node] = {}  # what gets the name of what
        for k, value in enumerate(old):
            after = new[k]
            is_free = after.producer in copies and after.producer not in taken.values() and len(after.producer.outputs) == 1
            if value.producer in named and value.producer not in taken and not is_free:
                after = new[k] = add_identity(after, value.producer.name).outputs[0]
                after.producer.device = value.producer.device
                copies[after.producer] = None
                is_free = True
            if is_free:
                taken.setdefault(value.producer, after.producer)
        readers = [reader for value in old for reader in value.consumers]
        graph.replace_many_uses(dict(zip(old, new, strict=True)), keep=matched)
        for node in matched:
            if node.control_consumers or graph.is_border(node):
                # What is waited for from inside is gone with what waits.
                reroute_control([*dict.fromkeys(v.producer for v in new), *controls], node, cannot_modify=matched)
        for node, after in taken.items():
            graph.replace_in_collections(node, after)
        sources = [value.producer for value in match.captured]
        around = [producer for node in matched for producer in producers_of(node)]
        names = {node: node.name for node in taken}
        remove_unread(graph, order_of(matched), lambda node: self._may_go(rule, node, matched))
        for node, after in taken.items():
            if not graph.owns(node):
                graph.rename(after, names[node])
        self._touched.update(dict.fromkeys((*copies, *readers, *sources, *around)))

    def _copy(self, match: Match, replacement: Graph, controls: Sequence[Node]) -> tuple[dict[Node, None], list[Value]]:
        graph, first = self._graph, match.replaced[0].producer
        fed = {value.producer for value in replacement.inputs}
        inner = [node for node in order_of(backward_reachable(v.producer for v in replacement.outputs)) if node not in fed]
        captured = dict(zip(replacement.inputs, match.captured, strict=True))
        result = CloneResult(graph, {}, dict(captured), import_functions(replacement, graph, inner))
        copy_nodes(inner, result, {}, lambda node: graph.unique_name(f"{first.name}/{node.name}"))
        outside = set(captured.values())
        for copy in result.nodes:
            copy.device = copy.device or first.device
            if all(value in outside for value in copy.inputs):
                for control in controls if copy.inputs or not is_constant(copy) or self._of_tf1 else ():
                    graph.add_control_input(copy, control)
            if self._of_tf1 and not copy.inputs and not copy.control_inputs and outside:
                anchor = next(iter(captured.values()))
                if anchor.producer.op_type in CONTROL_FLOW_OF_TF1:
                    anchor = add_identity(anchor, f"{first.name}/anchor").outputs[0]
                graph.add_control_input(copy, anchor.producer)  # a loop's constants belong to its frame
        return dict.fromkeys(result.nodes), [result.value_of[value] for value in replacement.outputs]

    def _may_go(self, rule: GraphRule, node: Node, matched: Collection[Node]) -> bool:
        if node.op_type in MAY_BE_FED or self._graph.collections_of(node):
            return False
        return self._purity.is_pure(node) or (rule.effects and node in matched)


def _check_results(rule: GraphRule, match: Match, replacement: Graph) -> None:
    where = f"rule {rule.name!r} at node {match.replaced[0].producer.name!r}"
    if len(replacement.outputs) != len(match.replaced):
        raise GraphError(
            f"the replacement returns {len(replacement.outputs)} results, the pattern {len(match.replaced)}",
            where=where,
            remedy="return one for one",
        )
    for k, (old, new) in enumerate(zip(match.replaced, replacement.outputs, strict=True)):
        if old.dtype != new.dtype:
            raise GraphError(
                f"result {k} of the replacement is {new.dtype}, where {old.name} is {old.dtype}",
                where=where,
                remedy="cast it, or add a condition on dtypes",
            )
        if not agree(old.last_shape, new.last_shape):
            raise GraphError(
                f"result {k} of the replacement has shape {format_shape(new.last_shape)}, where {old.name} has "
                f"{format_shape(old.last_shape)}",
                where=where,
                cause="the sides of the rule are equal for other shapes only",
                remedy="add a condition on shapes",
            )
