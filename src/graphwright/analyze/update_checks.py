"""Find likely mistakes in a training step: updates that do not run, weights that do not learn, writes without order."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from graphwright.analyze.batch_norms import unkept_batch_norms
from graphwright.analyze.collections import UPDATE_OPS
from graphwright.analyze.variable_access import Access, run_nodes
from graphwright.analyze.write_order import unordered_writes
from graphwright.ir.edit.library import reached_functions
from graphwright.ir.graph import Graph, Node
from graphwright.ir.signature import node_of, references_of

FindingKind = Literal[
    "update ops not run",
    "moving statistics not assigned",
    "frozen, statistics move",
    "not trained",
    "written without order",
    "never read",
    "unused",
    "unused input",
    "open dimension",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """A likely mistake about the variables of a step, in one sentence, and the names of these variables or nodes."""

    kind: FindingKind
    message: str
    remedy: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


def check_step(
    graph: Graph,
    needed: AbstractSet[Node],
    accesses: Sequence[Access],
    names: Mapping[str, str],
    trainable: AbstractSet[str],
    weights: AbstractSet[str],
    *,
    update_ops: Iterable[Node] = (),
    run: AbstractSet[Node] = frozenset(),
    read_elsewhere: AbstractSet[str] = frozenset(),
) -> list[Finding]:
    """Return all findings about a step.

    Args:
        graph: without function calls.
        needed: the nodes that the step runs.
        accesses: of these nodes.
        names: of variables, by key.
        trainable: keys of trained variables.
        weights: keys of the variables that the model computes with.
        update_ops: nodes of the collection UPDATE_OPS in the original graph.
        run: the nodes of that graph that the step runs.
        read_elsewhere: keys of variables that other parts of that graph read.
    """
    written = {access.key for access in accesses if access.writes}
    read = {access.key for access in accesses if access.reads}
    trained = trainable & written
    findings: list[Finding] = []
    if trained:
        every = dict.fromkeys(update_ops)
        missing = _update_ops(tuple(node.name for node in every if node not in run), len(every))
        forgotten = (trainable & read) - written
        findings += [
            missing if missing.names else _batch_norms(graph, needed),
            _not_trained(tuple(name for key, name in names.items() if key in forgotten), len(trained)),
        ]
    findings += _write_order(graph, accesses, names)
    findings += _not_read(names, weights - read - read_elsewhere, written)
    return [finding for finding in findings if finding.names]


def update_ops_of(graph: Graph) -> list[Node]:
    """Return the nodes in the collection UPDATE_OPS."""
    collection = graph.collections.get(UPDATE_OPS)
    return [] if collection is None else [node_of(held) for item in collection.items for held in references_of(item)]


# A finding that names nothing is none.


def _update_ops(missing: tuple[str, ...], count: int) -> Finding:
    return Finding(
        "update ops not run",
        f"the step trains, and does not run {_some(missing)} ({len(missing)} of {count} operations in UPDATE_OPS), so moving "
        "statistics keep the values that they were initialized with, and inference uses those",
        "make the train op under tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS))",
        missing,
    )


def _batch_norms(graph: Graph, needed: AbstractSet[Node]) -> Finding:
    names = [node.name for node in unkept_batch_norms(graph, [n for n in graph.nodes if n in needed])]
    for name in reached_functions(graph, needed):
        body = graph.functions[name].body
        run = run_nodes(body)
        names += [f"{name}/{node.name}" for node in unkept_batch_norms(body, [n for n in body.nodes if n in run])]
    return Finding(
        "moving statistics not assigned",
        f"{_some(names)} normalize{'s' if len(names) == 1 else ''} with the statistics of the batch, and nothing keeps them, so "
        "inference will use moving statistics that never moved",
        "run the updates of the moving statistics in the step, or call the layer with training=False where it is frozen",
        tuple(names),
    )


def _not_trained(names: tuple[str, ...], trained: int) -> Finding:
    return Finding(
        "not trained",
        f"the step updates {trained} trainable variables, but not {_some(names)}",
        "mark what is frozen with trainable=False, or pass it to the optimizer; a variable that the loss does not depend on has no "
        "gradient",
        names,
    )


def frozen_but_moving(layers: Mapping[str, Iterable[str]], moving: AbstractSet[str], written: AbstractSet[str]) -> Finding:
    """Find layers without a trained weight whose moving statistics the step updates.

    Args:
        layers: names of the weights, moving statistics included, by layer.
        moving: names of the moving averages of the step.
        written: names of all variables that the step writes.
    """
    held = {layer: set(names) for layer, names in layers.items()}
    frozen = tuple(
        layer for layer, names in held.items() if names & moving and names - moving and not (names - moving) & written and written - moving
    )
    return Finding(
        "frozen, statistics move",
        f"the step trains nothing of {_some(frozen)}, and updates {'its' if len(frozen) == 1 else 'their'} moving statistics",
        "set layer.trainable = False, or call what is frozen with training=False",
        frozen,
    )


def _write_order(graph: Graph, accesses: Iterable[Access], names: Mapping[str, str]) -> list[Finding]:
    writers: dict[Graph, dict[str, dict[Node, None]]] = {}
    for access in accesses:
        if access.writes:
            writers.setdefault(graph, {}).setdefault(access.key, {})[access.top] = None
            if access.node.graph is not graph:
                writers.setdefault(access.node.graph, {}).setdefault(access.key, {})[access.node] = None
    findings: list[Finding] = []
    for body, by_key in writers.items():
        for key, (first, second) in unordered_writes(body, by_key).items():
            where = "" if body is graph else f" in function {body.name!r}"
            findings.append(
                Finding(
                    "written without order",
                    f"{names.get(key, key)} is written by {first.name} and by {second.name}{where}, and nothing puts the two in order: "
                    "which value stays depends on the run",
                    "add a control dependency between them",
                    (names.get(key, key),),
                )
            )
    return findings


def _not_read(names: Mapping[str, str], unread: AbstractSet[str], written: AbstractSet[str]) -> list[Finding]:
    unread_writes = tuple(name for key, name in names.items() if key in unread and key in written)
    unused = tuple(name for key, name in names.items() if key in unread and key not in written)
    are_kept, are_unused = (f"{_some(group)} {'is' if len(group) == 1 else 'are'}" for group in (unread_writes, unused))
    return [
        Finding("never read", f"{are_kept} written and never read", "remove it if it is not needed", unread_writes),
        Finding("unused", f"{are_unused} never read", "an unused weight takes memory and has no effect", unused),
    ]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
