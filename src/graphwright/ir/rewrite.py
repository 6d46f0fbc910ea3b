"""Rewriting to a fixed point: rules are applied wherever they fit, until none does.

After a rewrite only the surroundings of what changed are looked at again, so that the cost grows with the
number of rewrites and not with their square.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphwright.errors import GraphError
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.match import Match, OneOf, OpPattern, depth, match_at
from graphwright.ir.traits import has_known_effects


@dataclass(frozen=True)
class Rule:
    """What to look for and what to do there.

    Args:
        pattern: what to look for.
        replace: given a match, adds nodes and returns the value that takes the place of the root's first output, or a
            mapping from old values to new ones. None means that nothing is to be done here, and then it must not have changed anything.
        keep_name: whether a new node that takes the place of the root takes its name too.
    """

    pattern: OpPattern | OneOf
    replace: Callable[[Match], Value | Mapping[Value, Value] | None]
    keep_name: bool = True


def rewrite(graph: Graph, rules: Sequence[Rule], *, most: int | None = None, nodes: Iterable[Node] | None = None) -> int:
    """Apply rules until none fits any more; returns how often one was applied.

    Readers, graph outputs and signatures read the new value, and what waited for the root waits for its new node. Nodes of the match that
    nobody needs any more are removed, unless they have effects.

    Args:
        rules: of several that fit a node, the first is applied.
        most: give up after so many rewrites; by default ten times the number of nodes and a thousand.
        nodes: where to begin; by default everywhere.

    Raises:
        GraphError: the rules do not come to rest, or a replacement does not fit. What was rewritten before stays.

    >>> from graphwright.ir.match import op, value
    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... outputs %c:0
    ... %x = Placeholder() : float32[2]
    ... %a = Neg(%x:0) : float32[2]
    ... %b = Neg(%a:0) : float32[2]
    ... %c = Relu(%b:0) : float32[2]
    ... ''')
    >>> rewrite(g, [Rule(op("Neg", op("Neg", value("x"))), lambda match: match.value("x"))]), [str(n) for n in g]
    (1, ['<Node x = Placeholder()>', '<Node c = Relu(x:0)>'])
    """
    limit = 10 * len(graph) + 1000 if most is None else most
    reach = max((depth(rule.pattern) for rule in rules), default=0)
    queue = deque(graph if nodes is None else nodes)
    queued = set(queue)
    count = 0
    recorded = graph.touched
    try:
        while queue:
            node = queue.popleft()
            queued.discard(node)
            if not graph.owns(node):
                continue
            graph.touched = {}
            again = _apply_first(graph, rules, node)
            if again is None:
                continue
            count += 1
            if count > limit:
                raise GraphError(
                    f"the rules do not come to rest after {limit} rewrites",
                    where=f"node {node.name!r}",
                    cause="two rules undo each other, or one fits what it makes",
                )
            for other in _surroundings(graph, {**graph.touched, **again}, reach):
                if other not in queued:
                    queued.add(other)
                    queue.append(other)
            if recorded is not None:
                recorded.update(graph.touched)
    finally:
        graph.touched = recorded
    return count


def _apply_first(graph: Graph, rules: Sequence[Rule], node: Node) -> dict[Node, None] | None:
    """Apply the first rule that fits; returns the nodes for which a neighbor lost a reader, or None where no rule was applied."""
    for rule in rules:
        match = match_at(rule.pattern, node)
        if match is None:
            continue
        answer = rule.replace(match)
        if answer is None:
            continue
        return _replace(graph, match, answer if isinstance(answer, Mapping) else {node.outputs[0]: answer}, rule.keep_name)
    return None


def _replace(graph: Graph, match: Match, new_of: Mapping[Value, Value], keep_name: bool) -> dict[Node, None]:
    root, name = match.root, match.root.name
    made = dict(graph.touched or {})
    keep = {node for node in made if any(v in new_of for v in node.inputs)}  # what was made of the old value goes on reading it
    readers = [c for old in new_of for c in old.consumers if c not in keep]
    graph.replace_many_uses(new_of, keep=keep)
    stands_in = next((new.producer for old, new in new_of.items() if old.producer is root), None)
    if stands_in is not None and stands_in is not root and not keep:
        readers += root.control_consumers
        reroute_control(stands_in, root)
        graph.replace_in_collections(root, stands_in)
    fewer_readers: dict[Value, None] = {}
    waits: dict[Node, None] = {}
    for node in match.nodes:
        if _is_dead(graph, node):
            fewer_readers.update(dict.fromkeys(node.inputs))
            waits.update(dict.fromkeys(node.control_inputs))
            graph.remove_node(node)
    # What ran after a node that is gone goes on waiting for what that one waited for.
    behind = [stands_in] if stands_in is not None and stands_in in made else readers
    for control in waits:
        for after in behind:
            if graph.owns(control) and graph.owns(after) and control is not after:
                graph.add_control_input(after, control)
    if keep_name and stands_in is not None and not graph.owns(root) and stands_in in made and graph.owns(stands_in):
        graph.rename(stands_in, name)
    # A reader that is alone now may be what a pattern with `only_use` waits for.
    return {v.uses[0].node: None for v in fewer_readers if graph.owns(v.producer) and v.use_count == 1}


def _is_dead(graph: Graph, node: Node) -> bool:
    if not graph.owns(node) or graph.is_border(node) or node.control_consumers or has_known_effects(node):
        return False
    return not any(v.use_count for v in node.outputs) and not graph.collections_of(node)


def _surroundings(graph: Graph, nodes: Iterable[Node], reach: int) -> list[Node]:
    """The nodes, and those behind them that a pattern of this depth may see them from."""
    found = dict.fromkeys(node for node in nodes if graph.owns(node))
    wave = list(found)
    for _ in range(reach):
        following = [c for node in wave for v in node.outputs for c in v.consumers]
        following += [c for node in wave for c in node.control_consumers]
        wave = [node for node in dict.fromkeys(following) if node not in found]
        found.update(dict.fromkeys(wave))
    return list(found)
