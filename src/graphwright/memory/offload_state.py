"""The steps that keep optimizer state in files make of a step, which are planned like any other (see `memory.verbs`)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from graphwright.analyze.backward import backward_nodes
from graphwright.analyze.cost import TaskMap
from graphwright.analyze.optimizer_state import find_optimizer_state
from graphwright.analyze.variable_access import find_accesses
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph, Value
from graphwright.ir.traits.variables import variable_key
from graphwright.memory.offload import LEAST_BYTES, Offload
from graphwright.memory.verbs import Candidate, candidate_of
from graphwright.report.units import format_bytes
from graphwright.step.flatten import FlatStep
from graphwright.transform.offload import WRITE_BUFFER_BYTES
from graphwright.transform.offload_state import Sent, may_be_sent, send_away


def state_candidates(
    given: Candidate, map_tasks: Callable[[FlatStep], TaskMap], offload: Offload, excess_bytes: int
) -> Iterator[Candidate]:
    """The given step with as many slots of its optimizer in files between two runs as make up for some bytes, the largest ones; with all.

    Each is read before its update and written behind it, so that few are in memory at once. Each is made when it is asked for.
    """
    graph = given.flat.graph
    slots = [k for k, value in enumerate(graph.inputs) if value in _state(graph) and may_be_sent(graph, value)]
    sizes = {k: graph.variables[graph.inputs[k]].nbytes or 0 for k in slots}
    slots = sorted((k for k in slots if sizes[k] >= LEAST_BYTES), key=lambda k: -sizes[k])
    sums = list(accumulate(sizes[k] for k in slots))
    enough = next((count for count, saved in enumerate(sums, 1) if saved >= excess_bytes), len(slots))
    for count in dict.fromkeys((enough, len(slots)) if slots else ()):
        yield sending(given, map_tasks, offload, slots[:count])


def sending(given: Candidate, map_tasks: Callable[[FlatStep], TaskMap], offload: Offload, slots: Sequence[int]) -> Candidate:
    """The given step with variables in files between two runs, by the positions of their handles among the inputs of its graph."""
    copy = copy_graph(given.flat.graph).graph
    sent = send_away(copy, [copy.inputs[k] for k in slots if may_be_sent(copy, copy.inputs[k])])
    nbytes = format_bytes(sum(one.nbytes for one in sent))
    how = f"{len(sent)} variables of the optimizer ({nbytes}) in files of {offload.to} but for their updates"
    made = candidate_of(given, copy, lambda flat: _in_files(map_tasks(flat), sent, offload), how)
    return replace(made, offload=offload, sent=tuple(sent))


def _state(graph: Graph) -> set[Value]:
    keys = {value: variable_key(value) for value in graph.variables}
    trainable = {keys[value] for value, variable in graph.variables.items() if variable.trainable}
    found = find_optimizer_state(graph, find_accesses(graph, keys), trainable, backward_nodes(graph))
    return {value for value, key in keys.items() if key in found}


def _in_files(tasks: TaskMap, sent: Sequence[Sent], offload: Offload) -> TaskMap:
    """The planning model in which variables take memory from when they are read to when they are written."""
    changed = list(tasks.costs.tasks)
    for one in sent:
        held = tasks.buffer_of[one.value]
        for t in {tasks.task_of[node] for node in one.readers if node in tasks.task_of}:
            changed[t] = replace(changed[t], recomputable=False)
        read, written, gone = tasks.task_of[one.value.producer], tasks.task_of[one.written], tasks.task_of[one.gone]
        changed[read] = replace(changed[read], time=changed[read].time + offload.engine.read_s(one.nbytes))
        write_s = changed[written].time + offload.engine.write_s(one.nbytes)
        changed[written] = replace(changed[written], time=write_s, workspace_bytes=WRITE_BUFFER_BYTES)
        changed[gone] = replace(changed[gone], inputs=(*changed[gone].inputs, held))
    resident = {value: nbytes for value, nbytes in tasks.resident.items() if value not in {one.handle for one in sent}}
    costs = replace(tasks.costs, tasks=tuple(changed), resident_bytes=sum(resident.values()))
    return replace(tasks, costs=costs, resident=resident)
