"""`rewrite`: search and replace in graphs, by rules that show both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Unpack

from graphwright.errors import ArgumentError
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.ir.jobs import Written, edits_in_place
from graphwright.ir.traits.effects import Purity
from graphwright.plain import Result
from graphwright.reuse.rule import Rule
from graphwright.reuse.rule_proof import RuleProof
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.rewrite import Application, LeftMatch, rewrite_graph

_MOST_LINES = 20


@dataclass(frozen=True, slots=True)
class RewriteReport(Result):
    """The result of `rewrite`.

    Attributes:
        applied: the replacements, in order.
        left: the matches that were not replaced, with reasons.
        nodes_before: nodes of the graph and its functions before.
        nodes_after: and after.
        proof: how equality of both sides was checked; empty without `prove`.
    """

    applied: tuple[Application, ...]
    left: tuple[LeftMatch, ...]
    nodes_before: int
    nodes_after: int
    proof: str = ""

    def __str__(self) -> str:
        nodes = f"{self.nodes_before:,} -> {self.nodes_after:,} nodes"
        lines = [f"{len(self.applied):,} replacements, {nodes}, {len(self.left):,} matches left"]
        lines += [f"  {rule}: {count:,}" for rule, count in Counter(item.rule for item in self.applied).most_common(_MOST_LINES)]
        lines += [f"  proof: {self.proof}"] if self.proof else []
        lines += [f"  left {item.node} ({item.rule}): {item.reason}" for item in self.left[:_MOST_LINES]]
        return "\n".join(lines)


@edits_in_place
def rewrite(
    graph: Graph,
    rules: Iterable[Rule] | Rule,
    *,
    prove: bool = False,
    functions: bool = True,
    rounds: int = 100,
    **written: Unpack[Written],
) -> RewriteReport:
    """Replace each match of a rule's pattern, until nothing matches.

    Inputs of commutative operations match in either order, constants by value. Nodes that become unused are removed. Fetched nodes keep
    their names, and control edges follow. Matches are left, and reported, if a node outside reads or a collection names an intermediate
    value, if they have effects, if they are clones made by rematerialization, or if the result would depend on itself. If this raises,
    the graph is unchanged.

    Args:
        rules: if matches overlap, the first rule wins.
        prove: run both sides of each replacement, once per combination of shapes and dtypes, on random values, and raise if they differ
            by more than roundoff.
        functions: whether to rewrite bodies of functions, loops and branches too.
        rounds: the number of passes over a graph after which rules count as endless.

    Returns:
        The replacements, and the matches that were left.

    Raises:
        ArgumentError: a rule cannot be traced, or its condition raises.
        GraphError: the rules are endless, or their sides have different dtypes or shapes; with `prove`, different values, or they cannot
            be run.

    >>> import tensorflow as tf
    >>> import graphwright as gw
    >>> step = tf.function(lambda a, b: tf.nn.relu(-b + a)).get_concrete_function(tf.TensorSpec([2]), tf.TensorSpec([2]))
    >>> graph = gw.load(step)
    >>> print(rewrite(graph, Rule(lambda x, y: x + -y, lambda x, y: x - y, name="subtract"), prove=True))
    1 replacements, 6 -> 5 nodes, 0 matches left
      subtract: 1
      proof: 1 of 1 equal bit for bit, each run on random values
    """
    rules = [rules] if isinstance(rules, Rule) else list(rules)
    for rule in rules:
        if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"{rule!r} is no rule", argument="rules", remedy="give graphwright.Rule(pattern, replacement), or a list of such"
            )
    if len(rules) > 1:
        rules = [replace(rule, name=f"rule {k}") if rule.title == "rule" else rule for k, rule in enumerate(rules)]
    proof = RuleProof() if prove else None
    before = sum(map(len, bodies(graph)))
    purity = Purity(graph, stateful_op_types(graph))
    applied, left = rewrite_graph(graph, [rule.on_graphs() for rule in rules], purity, rounds=rounds, functions=functions, check=proof)
    after = sum(map(len, bodies(graph)))
    return RewriteReport(tuple(applied), tuple(left), before, after, str(proof) if proof is not None and applied else "")
