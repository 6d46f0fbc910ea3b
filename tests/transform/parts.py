"""A step that runs in parts of its batch, next to the step itself."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from graphwright.analyze.splitting import Splitting, find_splitting
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.ir.verify import verify as verify_graph
from graphwright.source.concrete_function import to_concrete_function
from graphwright.step.flatten import FlatStep, flat_step, stateful_op_types
from graphwright.step.targets import trace
from graphwright.transform.split_batch import split_batch

tf: Any = importlib.import_module("tensorflow")


@dataclass(frozen=True)
class Split:
    flat: FlatStep
    splitting: Splitting
    function: Any

    @property
    def in_parts(self) -> set[str]:
        """The op types that run in parts."""
        return {node.op_type for node in self.splitting.nodes}

    @property
    def gathered(self) -> list[str]:
        """The op types that run whole though they read what is split."""
        nodes = self.splitting.nodes
        split = {value for node, how in nodes.items() for value in node.outputs if how.kind(value) >= 0}
        split.update(self.splitting.arguments)
        return [node.op_type for node in self.flat.graph.nodes if node not in nodes and split.intersection(node.inputs)]


def split_step(step: Any, inputs: Any, parts: int) -> Split:
    """A step in so many parts, which TensorFlow can call."""
    flat = flat_step(trace(step, inputs=inputs))
    splitting = _splitting(flat.graph, flat.binding.argument_count)
    graph = copy_graph(flat.graph).graph  # the rewrite is in place
    split_batch(graph, Purity(graph, stateful_op_types(graph)), _splitting(graph, flat.binding.argument_count), parts)
    verify_graph(graph)
    return Split(flat, splitting, to_concrete_function(graph, flat.binding))


def _splitting(graph: Graph, argument_count: int) -> Splitting:
    found = find_splitting(graph, Purity(graph, stateful_op_types(graph)), graph.inputs[:argument_count])
    assert found is not None
    return found
