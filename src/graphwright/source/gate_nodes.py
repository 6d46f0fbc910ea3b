"""Opaque gates (`source/opaque_gate.py`) as nodes of an IR graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphwright.ir.edit.reroute import reroute
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.walk import topological_order
from graphwright.source.live_graph import numeric_output
from graphwright.source.opaque_gate import always_true, held, some_bits
from graphwright.source.traced_nodes import add_traced


def write_gates(graph: Graph, gates: Mapping[Node, bool]) -> None:
    """Put what XLA honors in the place of gates: all are traced by TensorFlow at once, and their nodes are copied here.

    Args:
        gates: each an Identity that waits for nodes with a `numeric_output`, and whether it is solid (see `held`).
    """
    if not gates:
        return
    waits = {gate: tuple(value for value in map(numeric_output, gate.control_inputs) if value is not None) for gate in gates}
    values = list(dict.fromkeys(value for gate in gates for value in (gate.inputs[0], *waits[gate])))
    place = {value: k for k, value in enumerate(values)}

    def build(*tensors: Any) -> list[Any]:
        conditions: dict[tuple[Value, ...], Any] = {}
        results: list[Any] = []
        for gate, solid in gates.items():
            if waits[gate] not in conditions:
                conditions[waits[gate]] = always_true(some_bits([tensors[place[value]] for value in waits[gate]]))
            results.append(held(tensors[place[gate.inputs[0]]], conditions[waits[gate]], solid=solid))
        return results

    reroute(add_traced(graph, build, values, scope="gates"), [gate.outputs[0] for gate in gates])
    graph.remove_nodes(list(gates))
    graph.sort_nodes(topological_order(graph))
