"""Shapes after edits: the stale nodes of a graph are asked for their shapes again, and what reads a changed one after them.

Small integer tensors may hold dimensions, so what reads one is asked again even if its own shape stays.

Most edits change no shape, or few: so first only what was edited is asked, then, for a few rounds, the
readers of what changed. An edit whose effect goes further is settled by one question about everything
behind it, in topological order, so that a rule with a high cost per call is called a few times only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute
from graphwright.ir.dtypes import Shape, common_shape
from graphwright.ir.node import Node, Value, recorded_shapes, write_shape
from graphwright.ir.traits.control_flow import is_back_edge
from graphwright.ir.walk import forward_reachable, order_of

if TYPE_CHECKING:
    from graphwright.ir.outputs import Outputs

ShapeRule = Callable[[Sequence[Node]], Sequence[Sequence[Shape]]]

_ROUNDS_OF_READERS = 4
_ROUNDS_BEFORE_WIDENING = 12


def settle(graph: Outputs, rule: ShapeRule) -> None:
    """Ask the rule for the shapes of the stale nodes and of all that depends on what changes.

    Raises:
        GraphError: the rule raises or answers for other nodes; the shapes are as before, and the nodes stay stale.
    """
    pending = graph.stale
    graph.stale = {}  # the rule reads shapes, and must see what is known so far
    before: dict[Value, tuple[Shape, Mapping[str, Attribute]]] = {}
    try:
        _settle(rule, pending, before, graph.unasked)
    except BaseException:
        for value, (shape, recorded) in before.items():
            value.last_shape = shape
            for name, attribute in recorded.items():
                value.producer.attrs.record(name, attribute)
        graph.stale = pending
        raise


def _settle(
    rule: ShapeRule, pending: Iterable[Node], before: dict[Value, tuple[Shape, Mapping[str, Attribute]]], unasked: Container[Node]
) -> None:
    wave = order_of(pending)
    rounds = 0
    while wave:
        rounds += 1
        place = {node: k for k, node in enumerate(wave)}
        readers: dict[Node, None] = {}
        for node, shapes in zip(wave, _asked(rule, wave), strict=True):
            for value, shape in zip(node.outputs, shapes, strict=True):
                old = value.last_shape
                if rounds > _ROUNDS_BEFORE_WIDENING:  # a loop, whose shapes grow
                    shape = common_shape(old, shape)
                if shape == old and not _may_hold_dimensions(value):
                    continue
                # Who stands behind the node in this wave was asked with the new shape in mind.
                after = [reader for reader in value.consumers if place.get(reader, -1) <= place[node]]
                if shape == old:
                    after = [reader for reader in after if not is_back_edge(value, reader)]
                else:
                    before.setdefault(value, (old, recorded_shapes(node)))
                    write_shape(value, shape)
                readers.update(dict.fromkeys(after))
        behind = readers if rounds < _ROUNDS_OF_READERS else forward_reachable(readers, control=False)
        wave = order_of(node for node in behind if node not in unasked)


def _may_hold_dimensions(value: Value) -> bool:
    """Whether the elements may be the shape of something else, as the second input of Reshape: then they matter, too."""
    return value.dtype.name in ("int32", "int64") and (value.last_shape is None or len(value.last_shape) <= 1)


def _asked(rule: ShapeRule, wave: Sequence[Node]) -> Sequence[Sequence[Shape]]:
    try:
        answers = rule(wave)
    except Exception as error:  # a rule is the user's or TensorFlow's, and may raise anything
        node = _first_refused(rule, wave)
        raise GraphError(
            f"the shapes of {node.name!r} = {node.op_type} do not fit: {error}",
            where=f"node {node.name!r}, inputs {', '.join(f'{v.name} {v.last_shape}' for v in node.inputs)}",
            cause="an edit gave it inputs or attributes that it cannot have",
            remedy="change its inputs or attributes, or remove it",
        ) from error
    counts = [len(node.outputs) for node in wave]
    if [len(shapes) for shapes in answers] != counts:
        raise GraphError(f"the rule gave other numbers of shapes than the {len(wave)} nodes have outputs", where="graph.shape_rule")
    return answers


def _first_refused(rule: ShapeRule, wave: Sequence[Node]) -> Node:
    """The node without which the rule answers for all nodes before it."""

    def refuses(count: int) -> bool:
        try:
            rule(wave[:count])
        except Exception:  # noqa: BLE001 - the error itself was kept
            return True
        return False

    return wave[bisect_left(range(1, len(wave)), True, key=refuses)]
