"""Variables that are in a file between two runs of a step: what brings one back and sends it away is nothing that the step does with it.

Let a variable hold, when a run starts, either its value or the name of a file with its value: 128 bits that an earlier run of the same
nodes drew. It is *sent* where all of this holds:

- before anything else touches it, it is assigned what an `If` gives: where it holds as many elements as a name has, and its value has
  more, the tensor that is read from the file of that name; else what it holds;
- behind all that touches it, it is read, written to a file of a name that is drawn then, and, when that is done, assigned that name;
- the name that is drawn goes nowhere else, and names of files are made in one way of what is drawn and of what the variable holds.

Then whoever reads a file reads what the run that drew its name has left, and between the two the step sees the value that it would see.
What breaks one of these conditions is not sent, and its nodes are seen as the effects that they are. It knows nothing of what made them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from graphwright.analyze.private_files import Pairs, draws_enough, is_whole
from graphwright.ir.constants import constant_array, text_of
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import counts_elements, is_equality
from graphwright.ir.traits.control_flow import function_at
from graphwright.ir.traits.effects import draws_from_system, joins_texts, moves_files, reads_file, writes_file
from graphwright.ir.traits.values import is_bitcast, is_identity, only_orders, origin
from graphwright.ir.traits.variables import ASSIGNS_WHOLE_VALUE, is_read
from graphwright.ir.walk import paths_among


def sent_variables(graph: Graph, nodes: Sequence[Node], defaults: Callable[[str], Mapping[str, object]]) -> frozenset[Node]:
    """All nodes that do nothing but bring variables back and send them away.

    Args:
        nodes: those that run.
        defaults: the attributes of an op type that nodes may leave out, with the values that they have then.
    """
    sent = _Sent(graph, set(nodes), defaults)
    likely = [sent.of_draw(draw) for draw in nodes if draws_from_system(draw) and draws_enough(draw)]
    ordered = paths_among(pair for ways in likely for _, pairs in ways for pair in pairs)
    found = (next((around for around, pairs in ways if ordered.issuperset(pairs)), set[Node]()) for ways in likely)
    return frozenset[Node]().union(*found)


class _Sent:
    """Looks for the variables of one graph that are sent."""

    def __init__(self, graph: Graph, runs: set[Node], defaults: Callable[[str], Mapping[str, object]]) -> None:
        self.graph, self.runs, self.defaults = graph, runs, defaults

    def of_draw(self, draw: Node) -> list[tuple[set[Node], Pairs]]:
        """The nodes around the variable that gets what one node draws, and what has to be in order for it, in each way in which it may have
        been brought back; none where another condition does not hold."""
        bits = [n for n in self._consumers(draw.outputs[0]) if is_bitcast(n)]
        gone = [n for b in bits for n in self._consumers(b.outputs[0])]
        if len(bits) != 1 or len(gone) != 1 or not _assigns(gone[0]):
            return []
        handle = gone[0].inputs[0]
        variable = self.graph.variables.get(handle)
        users = self._consumers(handle)
        name = bits[0].outputs[0]
        if (
            variable is None
            or variable.nbytes is None
            or name.nbytes is None
            or variable.nbytes <= name.nbytes
            or name.dtype != variable.dtype
        ):
            return []

        # On the way out.
        saves = [n for n in gone[0].control_inputs if writes_file(n) and len(n.inputs) == 4 and is_whole(n)]
        saves = [n for n in saves if self._name_of(n.inputs[0], draw.outputs[0]) is not None]
        if len(saves) != 1:
            return []
        read, made = saves[0].inputs[3].producer, self._name_of(saves[0].inputs[0], draw.outputs[0])
        if made is None or not is_read(read) or read.inputs[0] is not handle or self._consumers(read.outputs[0]) != [saves[0]]:
            return []
        nodes, folder, suffix, how = made
        if not {n for v in draw.outputs for n in self._consumers(v)} <= nodes | {bits[0]}:
            return []
        out = {draw, bits[0], gone[0], saves[0], read, *nodes}
        inside = out - {draw}
        if any(n not in out and not only_orders(n) for one in inside for v in one.outputs for n in self._consumers(v)):
            return []

        # On the way back.
        backs = [
            n
            for n in users
            if n is not gone[0] and _assigns(n) and function_at(origin(n.inputs[1]).producer, "then_branch", self.graph) is not None
        ]
        ways: list[tuple[set[Node], Pairs]] = []
        for back in backs:
            choice = origin(back.inputs[1]).producer
            into = self._bring_back(handle, choice, (folder, suffix, how), name)
            if into is None or self._consumers(choice.outputs[0]) != [back]:
                continue
            into |= {back, choice}
            others = [n for n in users if n not in out | into]
            pairs = [pair for n in others for pair in ((back, n), (n, read))] or [(back, read)]
            ways.append((out | into, pairs))
        return ways

    def _bring_back(self, handle: Value, choice: Node, file: tuple[Value, str, tuple[str, ...]], name: Value) -> set[Node] | None:
        """What reads the variable and asks whether it holds a name, where the branches are right."""
        if len(choice.inputs) < 3 or len(choice.outputs) != 1 or choice.inputs[2] is not file[0]:
            return None
        held, asked = choice.inputs[1].producer, origin(choice.inputs[0]).producer
        if not is_read(held) or held.inputs[0] is not handle or not is_equality(asked):
            return None
        size, count = asked.inputs[0].producer, constant_array(asked.inputs[1].producer)
        if not counts_elements(size) or size.inputs[0] is not held.outputs[0] or count is None or name.shape is None or None in name.shape:
            return None
        if int(count) != math.prod(d or 0 for d in name.shape) or not set(self._consumers(held.outputs[0])) <= {size, choice}:
            return None
        kept, read = function_at(choice, "else_branch", self.graph), function_at(choice, "then_branch", self.graph)
        if kept is None or read is None or kept.body.outputs != kept.body.inputs[:1] or kept.body.control_outputs:
            return None
        body = read.body
        restore = body.outputs[0].producer
        if not reads_file(restore) or not is_whole(restore) or restore.outputs[0].dtype != name.dtype or len(body.outputs) != 1:
            return None
        [numbers] = [n.outputs[0] for n in body.inputs[0].consumers if is_bitcast(n)] or [None]
        made = None if numbers is None else self._name_of(restore.inputs[0], numbers)
        if made is None or made[1] is not body.inputs[1] or made[2:] != file[1:]:
            return None
        for node in body.control_outputs:
            if not moves_files(node) or restore not in node.control_inputs or len(node.inputs) != 2 or node.inputs[1] is not body.inputs[2]:
                return None
        return {held, size, asked}

    def _name_of(self, file: Value, numbers: Value) -> tuple[set[Node], Value, str, tuple[str, ...]] | None:
        """What makes the name of a file of numbers, the folder, what the name ends in, and how it is made; None where it is not."""
        join = file.producer
        if len(join.inputs) != 3 or len(suffix := text_of(join.inputs[2])) != 1:
            return None
        digits = join.inputs[1].producer
        each = digits.inputs[0].producer if digits.inputs else digits
        steps = (join, digits, each)
        if not all(map(joins_texts, steps)) or each.inputs != (numbers,):
            return None
        how = tuple(
            repr((node.op_type, sorted((k, repr(a)) for k, a in {**self.defaults(node.op_type), **node.attrs}.items() if k[0] != "_")))
            for node in steps
        )
        axes = [constant_array(v.producer) for v in digits.inputs[1:]]
        if any(axis is None for axis in axes):
            return None
        return set(steps), join.inputs[0], suffix[0], (*how, repr([axis.tolist() for axis in axes if axis is not None]))

    def _consumers(self, value: Value) -> list[Node]:
        """Who reads a value; not what is only waited for."""
        found = [node for node in dict.fromkeys(value.consumers) if node in self.runs]
        return [node for node in found if not is_identity(node) or node.outputs[0].uses]


def _assigns(node: Node) -> bool:
    return node.op_type in ASSIGNS_WHOLE_VALUE and len(node.inputs) == 2
