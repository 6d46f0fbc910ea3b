"""Files of a step's own stand for what was written to them, and deliberate faults in them are seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphwright.analyze.private_files import private_files
from graphwright.ir.constants import add_constant, text_attribute
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph
from graphwright.ir.traits.effects import Purity
from graphwright.transform.offload import SpillFiles
from graphwright.transform.proof import Original

F32 = [(DTYPES["float32"], (4,))]
STATEFUL = dict.fromkeys(["SaveV2", "RestoreV2", "MergeV2Checkpoints", "NonDeterministicInts"], True) | dict.fromkeys(
    ["Exp", "Neg", "Placeholder", "AsString", "ReduceJoin", "StringJoin", "Pack"], False
)


def original() -> Graph:
    graph = Graph()
    x = graph.add_node("Placeholder", "x", output_types=F32)
    graph.inputs = x.outputs
    first, second = (graph.add_node(op, op, inputs=x.outputs, output_types=F32) for op in ("Exp", "Neg"))
    graph.outputs = [graph.add_node("Neg", f"out{k}", inputs=n.outputs, output_types=F32).outputs[0] for k, n in enumerate((first, second))]
    return graph


def spilled() -> Graph:
    """The same, in which both values go to files and back."""
    graph = original()
    files = SpillFiles(graph, "/spill")
    for k, name in enumerate(("Exp", "Neg")):
        value = graph[name].outputs[0]
        files.write(value)
        graph.replace_inputs(graph[f"out{k}"], files.read(value).outputs)
    files.finish()
    return graph


def difference(graph: Graph) -> str:
    before = original()
    return Original(before, Purity(before, STATEFUL)).compare(graph, Purity(graph, STATEFUL)).difference


def test_a_read_of_a_private_file_is_what_was_written() -> None:
    graph = spilled()
    assert difference(graph) == ""
    files = private_files(graph.nodes)
    assert {read.name: value.name for read, value in files.written.items()} == {"offloaded/Exp:0": "Exp:0", "offloaded/Neg:0": "Neg:0"}


def test_edges_may_lead_through_other_nodes() -> None:
    graph = spilled()
    for name in ("offloaded/Exp", "offloaded/Neg"):
        write = graph[f"{name}/write"]
        graph.remove_control_input(graph[name], write)
        graph.add_control_input(graph[name], graph.add_node("NoOp", f"{name}/between", control_inputs=[write]))
    assert len(private_files(graph.nodes).written) == 2
    graph.remove_control_input(graph["offloaded/Neg/between"], graph["offloaded/Neg/write"])
    assert not private_files(graph.nodes).written


def _not_ordered(graph: Graph) -> None:
    graph.remove_control_input(graph["offloaded/Exp"], graph["offloaded/Exp/write"])


def _other_file(graph: Graph) -> None:
    read = graph["offloaded/Exp"]
    graph.replace_inputs(read, [graph["offloaded/Neg/file"].outputs[0], *read.inputs[1:]])


def _same_name(graph: Graph) -> None:
    graph.set_attr(graph["offloaded/Neg/number"], "value", text_attribute(".0"))


def _written_twice(graph: Graph) -> None:
    write, other = graph["offloaded/Exp/write"], graph["Neg"].outputs
    again = graph.add_node("SaveV2", "again", inputs=[*write.inputs[:3], *other], attrs=dict(write.attrs))
    graph.control_outputs = [*graph.control_outputs, again]


def _name_known_outside(graph: Graph) -> None:
    graph.outputs = [*graph.outputs, graph["offloaded/Exp/file"].outputs[0]]


def _moved_before_read(graph: Graph) -> None:
    graph.remove_control_input(graph["offloaded/Exp/over"], graph["offloaded/Exp"])


def _moved_elsewhere(graph: Graph) -> None:
    graph.set_attr(graph["offloaded/over"], "value", text_attribute("/home/weights"))


def _folders_removed(graph: Graph) -> None:
    graph.set_attr(graph["offloaded/Exp/over"], "delete_old_dirs", True)


def _few_bits(graph: Graph) -> None:
    few = add_constant(graph, "few", np.array([1], np.int32))
    graph.replace_inputs(graph["offloaded/run/drawn"], [few])


def _part_of_it(graph: Graph) -> None:
    graph.set_attr(graph["offloaded/slices"], "value", text_attribute(["4 0,2"]))


def _named_by_the_step(graph: Graph) -> None:
    numbers = add_constant(graph, "numbers", np.arange(4, dtype=np.int32))
    graph.replace_inputs(graph["offloaded/run/digits"], [numbers])


FAULTS: list[Callable[[Graph], None]] = [
    _not_ordered, _other_file, _same_name, _written_twice, _name_known_outside, _moved_before_read, _moved_elsewhere, _folders_removed,
    _few_bits, _part_of_it, _named_by_the_step,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_seen(fault: Callable[[Graph], None]) -> None:
    graph = copy_graph(spilled()).graph
    assert difference(graph) == ""
    fault(graph)
    assert difference(graph)
