"""`rewrite`: search and replace in graphs, by rules that show both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Unpack

from graphwright.errors import ArgumentError
from graphwright.ir.edit.library import bodies
from graphwright.ir.given import Written, edits_in_place
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.plain import Result
from graphwright.reuse.rule import Rule
from graphwright.reuse.rule_proof import RuleProof
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.rewrite import Application, LeftMatch, rewrite_graph

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class RewriteReport(Result):
    """What `rewrite` did.

    Attributes:
        applied: the replacements, in their order.
        left: the matches that were left, and why.
        nodes_before: nodes of the graph and its functions before.
        nodes_after: and after.
        proof: how it was proved that both sides compute the same; "" where nobody asked.
    """

    applied: tuple[Application, ...]
    left: tuple[LeftMatch, ...]
    nodes_before: int
    nodes_after: int
    proof: str = ""

    def __str__(self) -> str:
        nodes = f"{self.nodes_before:,} -> {self.nodes_after:,} nodes"
        lines = [f"{len(self.applied):,} replacements, {nodes}, {len(self.left):,} matches left"]
        lines += [f"  {rule}: {count:,}" for rule, count in Counter(item.rule for item in self.applied).most_common(_SHOWN)]
        lines += [f"  proof: {self.proof}"] if self.proof else []
        lines += [f"  left {item.node} ({item.rule}): {item.reason}" for item in self.left[:_SHOWN]]
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
    """Replace what looks like one example by another, wherever it is found, until none is found any more.

    Inputs of operations that commute match in either order, constants by value. What a replacement makes useless is removed. What is
    fetched keeps its name, and control edges follow. Left, and told, are: matches of which something outside reads, or a collection
    names, what lies in between; what has effects; clones that rematerialization made; and what would come to depend on itself. The
    graph is as it was where this raises.

    Args:
        rules: see `Rule`. Where matches overlap, the rule that comes first goes first.
        prove: run both sides of each replacement, once per combination of shapes and dtypes, on random values, and raise where they
            differ by more than roundings.
        functions: whether bodies of functions, loops and branches are rewritten too.
        rounds: how often the rules may go over a graph before they count as endless.

    Returns:
        What was replaced, and what was left and why.

    Raises:
        ArgumentError: a rule cannot be traced, or its condition raises.
        GraphError: rules do not come to an end, sides give other dtypes or shapes; with `prove`, other values, or they cannot be run.

    >>> import tensorflow as tf
    >>> import graphwright as gw
    >>> step = tf.function(lambda a, b: tf.nn.relu(-b + a)).get_concrete_function(tf.TensorSpec([2]), tf.TensorSpec([2]))
    >>> graph = gw.load(step)
    >>> print(rewrite(graph, Rule(lambda x, y: x + -y, lambda x, y: x - y, name="subtract"), prove=True))
    1 replacements, 6 -> 5 nodes, 0 matches left
      subtract: 1
      proof: 1 of 1 equal bit for bit, each run on random values
    """
    given = [rules] if isinstance(rules, Rule) else list(rules)
    for rule in given:
        if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"{rule!r} is no rule", argument="rules", remedy="give graphwright.Rule(pattern, replacement), or a list of such"
            )
    proof = RuleProof() if prove else None
    before = sum(map(len, bodies(graph)))
    many = len(given) > 1
    traced = [replace(rule, name=f"rule {k}" if many and rule.title == "rule" else rule.name).on_graphs() for k, rule in enumerate(given)]
    types = stateful_op_types(graph)
    done, left = rewrite_graph(graph, traced, Purity(graph, types), rounds=rounds, functions=functions, check=proof)
    told = str(proof) if proof is not None and done else ""
    return RewriteReport(tuple(done), tuple(left), before, sum(map(len, bodies(graph))), told)
