"""Find loops and their gradient loops: the lists between them, and the values from which a segment can run again.

Terms
-----
pair
    A loop that pushes one tensor per round onto lists that were empty before it, and the *gradient loop* that pops them in as many rounds.
needed
    The loop's values that its pushes or its condition depend on, over any number of rounds.
borders
    The needed values that change from round to round: with them, and with the unchanging ones, the loop can run again from any round.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from graphwright.errors import GraphError
from graphwright.ir.constants import constant_array
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import LOOPS, called_functions, function_at
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.rounds import adds_two, is_empty_list, is_less, pops, pushes
from graphwright.ir.traits.values import IDENTITIES, origin, returned_arguments
from graphwright.ir.traits.variables import is_read, resource_of
from graphwright.ir.walk import backward_reachable, forward_reachable


@dataclass(frozen=True)
class LoopPair:
    """A loop and its gradient loop, which can run in segments.

    Attributes:
        lists: positions of each list in the loop and in the gradient loop.
        needed: positions in the loop, without the lists.
        borders: the needed positions that change.
        rounds: position in the loop of its count of rounds, and in the gradient loop of its limit.
    """

    forward: Node
    gradient: Node
    lists: tuple[tuple[int, int], ...]
    needed: tuple[int, ...]
    borders: tuple[int, ...]
    rounds: tuple[int, int]


def find_pairs(graph: Graph, purity: Purity) -> tuple[list[LoopPair], dict[str, str]]:
    """Return the pairs of a flat graph that can run in segments, and the reason why other loops that pop lists cannot, by name."""
    pairs: list[LoopPair] = []
    refused: dict[str, str] = {}
    for loop in graph.nodes:
        lists = popped_lists(graph, loop) if loop.op_type in LOOPS else {}
        for forward in dict.fromkeys(source.producer for source in lists.values()):
            if forward.op_type not in LOOPS:
                continue
            mine = tuple((value.index, p) for p, value in lists.items() if value.producer is forward)
            pair_or_reason = _pair(graph, purity, forward, loop, mine)
            if isinstance(pair_or_reason, str):
                refused[forward.name] = pair_or_reason
            else:
                pairs.append(pair_or_reason)
    for forward in {pair.forward for pair in pairs if sum(other.forward is pair.forward for other in pairs) > 1}:
        refused[forward.name] = "several loops pop its lists"
    return [pair for pair in pairs if pair.forward.name not in refused], refused


def loop_functions(graph: Graph, loop: Node) -> tuple[Graph, Graph]:
    """Return the graphs of the condition and of the body of a loop; raise `GraphError` if one is not in the library."""
    condition, body = function_at(loop, "cond", graph), function_at(loop, "body", graph)
    if condition is None or body is None:
        raise GraphError(f"a function of loop {loop.name!r} is not in the library", where=f"node {loop.name!r}")
    return condition.body, body.body


def popped_lists(graph: Graph, loop: Node) -> dict[int, Value]:
    """Return the lists that a loop pops from once per round, by position."""
    function = function_at(loop, "body", graph)
    lists: dict[int, Value] = {}
    for p, argument in enumerate(function.body.inputs if function is not None else ()):
        result = origin(function.body.outputs[p]) if function is not None else argument
        if pops(result.producer) and result.index == 0 and origin(result.producer.inputs[0]) is argument:
            lists[p] = origin(loop.inputs[p])
    return lists


def pushed_value(source: Value) -> Value | None:
    """Return the value that a loop pushes in each round onto a list that was empty before it; None for other values."""
    loop, k = source.producer, source.index
    function = function_at(loop, "body", loop.graph) if loop.op_type in LOOPS else None
    if function is None or not is_empty_list(origin(loop.inputs[k]).producer):
        return None
    push = origin(function.body.outputs[k]).producer
    return push.inputs[1] if pushes(push) and origin(push.inputs[0]) is function.body.inputs[k] else None


def _pair(graph: Graph, purity: Purity, forward: Node, gradient: Node, lists: tuple[tuple[int, int], ...]) -> LoopPair | str:
    if None in [function_at(node, name, graph) for node in (forward, gradient) for name in ("cond", "body")]:
        return "a function of it is not in the library"
    condition, body = loop_functions(graph, forward)
    for node in (forward, gradient):
        if not purity.is_pure(node):
            return f"{node.name!r} has effects, or draws random numbers from a hidden state: {_impure(graph, purity, node)}"
    for k, p in lists:
        if reason := _misused(graph, forward, gradient, k, p):
            return reason
    rounds = _counted_rounds(graph, forward, gradient)
    if rounds is None:
        return f"{gradient.name!r} does not count the rounds of {forward.name!r} from 0 on"
    needed = _needed(condition, body, [k for k, _ in lists])
    unchanged = {k for k, argument in enumerate(returned_arguments(body)) if k == argument}
    borders = tuple(k for k in needed if k not in unchanged)
    for k in borders:
        if body.inputs[k].dtype.itemsize is None:
            return f"a round needs a value of the former round that is no tensor, but a {body.inputs[k].dtype} ({body.inputs[k].name})"
    before, behind = backward_reachable([forward]), forward_reachable([gradient])
    read = {resource_of(forward.inputs[k]) for k in needed if body.inputs[k].dtype.name == "resource"}
    for handle in read:
        for node in _takers(handle):
            if not is_read(node) and not purity.is_pure(node) and node not in before and node not in behind:
                return f"{node.name!r} may write {handle.name} between it and {gradient.name!r}"
    return LoopPair(forward, gradient, lists, needed, borders, rounds)


def _impure(graph: Graph, purity: Purity, node: Node) -> str:
    for name in called_functions(node):
        for inner in graph.functions[name].body.nodes if name in graph.functions else ():
            if inner not in {v.producer for v in graph.functions[name].body.inputs} and not purity.is_pure(inner):
                return f"{inner.name} ({inner.op_type})"
    return "a function that is not known"


def _misused(graph: Graph, forward: Node, gradient: Node, k: int, p: int) -> str:
    """Return other uses of a list than one push and one pop per round, in words; "" for none."""
    (condition, body), (back_condition, back) = loop_functions(graph, forward), loop_functions(graph, gradient)
    push = origin(body.outputs[k]).producer
    if not pushes(push) or origin(push.inputs[0]) is not body.inputs[k]:
        return f"a list of it that {gradient.name!r} pops is not filled by one push per round"
    if not is_empty_list(forward.inputs[k].producer):
        return f"a list of it that {gradient.name!r} pops is not empty before it"
    for value in (body.inputs[k], condition.inputs[k], back.inputs[p], back_condition.inputs[p]):
        users = [use for use in readers_of(value) if not (pushes(use) or pops(use))]
        if users or len(list(readers_of(value))) > 1:
            return f"its list {forward.inputs[k].name} has a second reader inside"
    others = [use for use in readers_of(forward.outputs[k]) if use is not gradient]
    if others or forward.outputs[k] in graph.outputs or list(readers_of(forward.outputs[k])) != [gradient]:
        return f"its list {forward.outputs[k].name} has a second reader: {others[0].name!r}" if others else "its list has a second reader"
    if list(readers_of(gradient.outputs[p])) or gradient.outputs[p] in graph.outputs:
        return f"what {gradient.name!r} leaves of its list {forward.outputs[k].name} is read"
    return ""


def _counted_rounds(graph: Graph, forward: Node, gradient: Node) -> tuple[int, int] | None:
    """Return the positions of the count of rounds, from 0 on, in the loop, and of the limit of such a counter in the gradient loop."""
    condition, body = loop_functions(graph, gradient)
    test, arguments = origin(condition.outputs[0]).producer, list(condition.inputs)
    if not is_less(test) or any(origin(v) not in arguments for v in test.inputs):
        return None
    counter, limit = (arguments.index(origin(v)) for v in test.inputs)
    rounds = origin(gradient.inputs[limit])
    is_counted = (
        returned_arguments(body)[limit] == limit
        and not list(readers_of(body.inputs[limit]))
        and rounds.producer is forward
        and counts_from_zero(graph, gradient, counter)
        and counts_from_zero(graph, forward, rounds.index)
    )
    return (rounds.index, limit) if is_counted else None


def counts_from_zero(graph: Graph, loop: Node, position: int) -> bool:
    """Return whether a loop's value is the number of its rounds so far."""
    body = loop_functions(graph, loop)[1]
    step = origin(body.outputs[position]).producer
    if not adds_two(step) or not is_number(loop.inputs[position], 0):
        return False
    one = [v for v in step.inputs if origin(v) is not body.inputs[position]]
    return len(one) == 1 and is_number(one[0], 1)


def is_number(value: Value, expected: int) -> bool:
    array = constant_array(origin(value).producer)
    return array is not None and array.shape == () and array.dtype.kind == "i" and int(array) == expected


def _needed(condition: Graph, body: Graph, lists: Iterable[int]) -> tuple[int, ...]:
    """Return the positions of the values on which the pushes and the condition depend, in some round."""
    position = {v.producer: k for k, v in enumerate(body.inputs)}
    asked = {v.producer: k for k, v in enumerate(condition.inputs)}
    pushed = [origin(body.outputs[k]).producer.inputs[1].producer for k in lists]
    positions = {asked[n] for n in backward_reachable([condition.outputs[0].producer]) if n in asked}
    positions |= {position[n] for n in backward_reachable(pushed) if n in position}
    waiting = list(positions)
    while waiting:
        inside = backward_reachable([body.outputs[waiting.pop()].producer])
        new = {position[n] for n in inside if n in position} - positions
        positions |= new
        waiting += new
    return tuple(sorted(positions))


def readers_of(value: Value) -> Iterator[Node]:
    """Yield the nodes that read a value, through identities."""
    for use in value.uses:
        if use.node.op_type in IDENTITIES and len(use.node.outputs) == 1:
            yield from readers_of(use.node.outputs[0])
        else:
            yield use.node


def _takers(handle: Value) -> Iterator[Node]:
    for use in handle.uses:
        yield use.node
        for value in use.node.outputs:
            if value.dtype.name == "resource":
                yield from _takers(value)
