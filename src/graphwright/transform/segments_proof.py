"""The proof that loops in segments compute the same as the loops. Nothing runs; it does not know the rewriting code.

For each pair of loops (`analyze.loop_pairs` finds in the original what a segment needs) these are compared by value numbering:

- The loop pushes its values at the start of each segment, and runs its own body at most `length` times while its own condition holds.
- The gradient loop pops those values, runs the same body as often, with the lists that were empty before the loop, and then its own
  body once per counted iteration.
- Unchanged values are those of the loop.
- A loop after the segments is the loop, from where they ended; its gradient loop comes first, with as many iterations as are left.

A segment that runs again starts from the same values, so it does the same; the lists of all segments, end to end, are those of the loop,
and the gradient takes them from the last to the first. The rest is compared by `transform.proof`, with the loops put back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from graphwright.analyze.loop_pairs import LoopPair, counts_from_zero, find_pairs, is_number, loop_functions
from graphwright.errors import GraphwrightError
from graphwright.ir.constants import constant_array
from graphwright.ir.edit.clone import clone, copy_graph
from graphwright.ir.edit.prune import prune
from graphwright.ir.edit.reroute import replace_node
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import LOOPS
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.rounds import is_both, is_empty_list, is_less, pops, pushes, subtracts
from graphwright.ir.traits.values import origin, returned_arguments
from graphwright.transform.body_numbers import BodyNumbers, Class, DifferenceError, require
from graphwright.transform.proof import Original


def segments_difference(graph: Graph, purity: Purity, segmented: Graph, loops: Collection[str]) -> str:
    """Return the difference between a graph and one with loops in segments; "" if there is none."""
    pairs = [pair for pair in find_pairs(graph, purity)[0] if pair.forward.name in loops]
    if len(pairs) != len(loops):
        return "a loop in segments is none that can run in segments"
    schemes: list[_Scheme] = []
    for pair in pairs:
        try:
            schemes.append(_Scheme(graph, pair, segmented))
            schemes[-1].check()
        except DifferenceError as difference:
            return f"loop {pair.forward.name!r} in segments: {difference}"
    try:
        whole = _put_back(schemes, segmented)
    except GraphwrightError as error:
        return error.what
    return Original(graph, purity).compare(whole, purity.of(whole)).difference


def _put_back(schemes: Sequence[_Scheme], segmented: Graph) -> Graph:
    copy = copy_graph(segmented).graph
    for scheme in schemes:
        pair, outer, last = scheme.pair, copy[scheme.outer.name], copy[scheme.last.name]
        rest, back = copy[scheme.rest.name], copy[scheme.back.name]
        values = dict(zip(pair.forward.inputs, outer.inputs, strict=False))
        forward = clone([pair.forward], into=copy, input_map=values, rename=lambda name: f"{name}/whole").node_of[pair.forward]
        lists = {p: forward.outputs[k] for k, p in pair.lists}
        inputs = [lists.get(p, value) for p, value in enumerate(rest.inputs[: len(pair.gradient.inputs)])]
        inputs[pair.rounds[1]] = back.inputs[pair.rounds[1]]
        gradient = clone(
            [pair.gradient],
            into=copy,
            input_map=dict(zip(pair.gradient.inputs, inputs, strict=True)),
            rename=lambda name: f"{name}/whole",
        ).node_of[pair.gradient]
        copy.replace_inputs(gradient, inputs)
        copy.replace_inputs(forward, outer.inputs[: len(pair.forward.inputs)])
        replace_node(back, gradient)
        replace_node(last, forward)
    prune(copy)
    return copy


class _Scheme:
    def __init__(self, graph: Graph, pair: LoopPair, segmented: Graph) -> None:
        self.graph, self.pair, self.segmented = graph, pair, segmented
        self.numbers = BodyNumbers()
        for name in (pair.forward.name, pair.gradient.name):
            require(name in segmented and segmented[name].op_type in LOOPS, f"{name!r} is no loop any more")
        self.last, self.back = segmented[pair.forward.name], segmented[pair.gradient.name]
        self.count, self.back_count = len(pair.forward.inputs), len(pair.gradient.inputs)
        self.outer, self.rest = self.last, self.back
        self.goes_on = len(self.last.inputs) == self.count
        if self.goes_on:
            self.outer = origin(self.last.inputs[pair.borders[0]]).producer
            self.rest = next((use.node for use in self.last.outputs[pair.lists[0][0]].uses), self.back)
        loops = all(node.op_type in LOOPS for node in (self.outer, self.rest))
        wide = len(self.outer.inputs) >= self.count and len(self.back.inputs) >= self.back_count
        require(loops and wide and (not self.goes_on or len(self.rest.inputs) == self.back_count), "values are missing")
        self.condition, self.body = loop_functions(graph, pair.forward)
        self.back_condition, self.back_body = loop_functions(graph, pair.gradient)
        self.unchanged = [k == argument for k, argument in enumerate(returned_arguments(self.body))]
        self.lists = dict(pair.lists)
        # What does not change is known by what it is before the loop: several values of the loop may be the same one.
        self.classes: list[Class] = [("same", self.outer.inputs[k]) if self.unchanged[k] else ("value", k) for k in range(self.count)]
        self.length = 0
        self.borders: list[int] = []

    def check(self) -> None:
        self._check_loop()
        self._check_gradient()
        if self.goes_on:
            self._check_last_rounds()

    def _check_loop(self) -> None:
        condition, body = loop_functions(self.segmented, self.outer)
        own = [self.classes[k] if k < self.count else ("border", k) for k in range(len(self.outer.inputs))]
        goes_on = condition.outputs[0]
        if self.goes_on:
            both = origin(goes_on).producer
            require(is_both(both) and is_less(origin(both.inputs[0]).producer), "its segments do not end by a number and the condition")
            goes_on = both.inputs[1]
        self._same("its condition", (self.condition, self.classes, self.condition.outputs), (condition, own, [goes_on]))
        inner = next((node for node in body.nodes if node.op_type in LOOPS and is_number(node.inputs[0], 0)), None)
        require(inner is not None, "it has no loop over the rounds of a segment")
        assert inner is not None
        arguments = {value: k for k, value in enumerate(body.inputs)}
        places: dict[int, int] = {}
        for w, value in enumerate(inner.inputs[1:], start=1):
            k = arguments.get(origin(value), self.count)
            require(k < self.count and k not in places.values(), "a segment starts from something else")
            places[w] = k
        self.length = self._check_segment(self.segmented, inner, {w: self.classes[k] for w, k in places.items()}, places)
        for k in range(self.count):
            result = origin(body.outputs[k])
            stays = result is body.inputs[k] and (self.unchanged[k] or k in self.lists)
            require(stays or (result.producer is inner and places.get(result.index) == k), f"value {k} leaves a segment as something else")
        for b in range(self.count, len(self.outer.inputs)):
            push = origin(body.outputs[b]).producer
            require(is_empty_list(self.outer.inputs[b].producer), "a list of borders is not empty at first")
            require(pushes(push) and origin(push.inputs[0]) is body.inputs[b], "a border is not pushed once per segment")
            k = arguments.get(origin(push.inputs[1]), self.count)
            require(k < self.count, "a border is something else than a value of the loop")
            self.borders.append(k)

    def _check_segment(self, graph: Graph, inner: Node, classes: Mapping[int, Class], places: Mapping[int, int]) -> int:
        """Check a loop over the iterations of a segment; return its maximum length.

        Args:
            classes: the class of each of its values, by position.
            places: the positions of these values in the loop.
        """
        condition, body = loop_functions(graph, inner)
        own: list[Class] = [("round", 0), *(classes[w] for w in range(1, len(inner.inputs)))]
        both = origin(condition.outputs[0]).producer
        require(is_both(both), "a segment does not end by its length and the condition")
        inside, goes_on = (origin(value) for value in both.inputs)
        length = _limit(inside.producer, condition.inputs[0])
        require(length >= 1, "a segment has no length")
        self._same("the condition of a segment", (self.condition, self.classes, self.condition.outputs), (condition, own, [goes_on]))
        require(counts_from_zero(graph, inner, 0), "a segment does not count its rounds")
        wanted = [self.body.outputs[places[w]] for w in range(1, len(inner.inputs))]
        self._same("the body of a segment", (self.body, self.classes, wanted), (body, own, body.outputs[1:]))
        return length

    def _check_gradient(self) -> None:
        condition, body = loop_functions(self.segmented, self.back)
        fixed = len(self.back.inputs) - self.back_count - len(self.borders)
        require(fixed >= 0, "borders are missing")
        first = self.back_count + fixed
        own: list[Class] = [("value", p) for p in range(len(self.back.inputs))]
        classes: list[Class] = own[: self.back_count]
        self._same(
            "the gradient's condition", (self.back_condition, classes, self.back_condition.outputs), (condition, own, condition.outputs)
        )
        known: dict[Value, tuple[Class, int]] = {}
        for i in range(self.back_count, first):
            value = self.back.inputs[i]
            k = next((k for k, v in enumerate(self.outer.inputs[: self.count]) if v is value and self.unchanged[k]), -1)
            require(k >= 0 and origin(body.outputs[i]) is body.inputs[i], "what does not change is something else in the gradient loop")
            known[body.inputs[i]] = self.classes[k], k
        for b, k in enumerate(self.borders):
            rest, place = origin(body.outputs[first + b]), body.inputs[first + b]
            require(self.back.inputs[first + b] is self.outer.outputs[self.count + b], "the borders are not those of the loop")
            require(pops(rest.producer) and rest.index == 0 and origin(rest.producer.inputs[0]) is place, "a border is not popped")
            known[rest.producer.outputs[1]] = self.classes[k], k
        for k, p in self.lists.items():
            is_empty = self.back.inputs[p] is self.outer.inputs[k] and is_empty_list(self.back.inputs[p].producer)
            require(is_empty and origin(body.outputs[p]) is body.inputs[p], "a list is not empty at the start of a segment")
            known[body.inputs[p]] = self.classes[k], k
        # The segment that is run again may have as many values as its gradient; it says after how many rounds it ended.
        inner = (n for n in body.nodes if n.op_type in LOOPS and len(n.inputs) == self.back_count + 2)
        gradient = next((n for n in inner if n.inputs[1].producer.op_type in LOOPS), None)
        require(gradient is not None and is_number(gradient.inputs[1].producer.inputs[0], 0), "no segment is run again")
        assert gradient is not None
        again = gradient.inputs[1].producer
        require(gradient.inputs[1].index == 0, "the gradient takes another number of rounds than the segment had")
        missing = [v.name for v in again.inputs[1:] if origin(v) not in known]
        require(not missing, f"a segment is run again from something else: {', '.join(missing)}")
        arguments = {w: known[origin(v)] for w, v in enumerate(again.inputs) if w}
        length = self._check_segment(
            self.segmented, again, {w: item for w, (item, _) in arguments.items()}, {w: k for w, (_, k) in arguments.items()}
        )
        require(length == self.length, "a segment is run again with another length")
        self._check_rounds(body, gradient, again, {k: w for w, (_, k) in arguments.items()})

    def _check_last_rounds(self) -> None:
        (condition, body), (back_condition, back) = (loop_functions(self.segmented, node) for node in (self.last, self.rest))
        for k, value in enumerate(self.last.inputs):
            stays = value is self.outer.inputs[k] and (self.unchanged[k] or (k in self.lists and is_empty_list(value.producer)))
            require(stays or (origin(value) is self.outer.outputs[k] and k not in self.lists), f"value {k} goes on as something else")
        same, limit = returned_arguments(self.back_body), self.pair.rounds[1]
        popped = {p: k for k, p in self.lists.items()}
        total, done = (node.outputs[self.pair.rounds[0]] for node in (self.last, self.outer))
        for p, value in enumerate(self.rest.inputs):
            left, handed = origin(value), origin(self.back.inputs[p])
            if p in popped:
                require(left is self.last.outputs[popped[p]], "the gradient of the last rounds pops from something else")
            elif p == limit:
                is_rest = subtracts(left.producer) and [origin(v) for v in left.producer.inputs] == [total, done]
                require(is_rest and handed is total, "the gradient of the last rounds takes another number of rounds")
            else:
                require(
                    handed is self.rest.outputs[p] or (same[p] == p and handed is left),
                    f"the gradient's value {p} goes on as something else",
                )
        places: list[Class] = [("value", p) for p in range(self.back_count)]
        for what, original, rewritten, classes in (
            ("the condition of the last rounds", self.condition, condition, self.classes),
            ("the body of the last rounds", self.body, body, self.classes),
            ("the gradient's condition in the last rounds", self.back_condition, back_condition, places),
            ("the gradient's body in the last rounds", self.back_body, back, places),
        ):
            self._same(what, (original, classes, original.outputs), (rewritten, classes, rewritten.outputs))

    def _check_rounds(self, body: Graph, gradient: Node, again: Node, place_of: Mapping[int, int]) -> None:
        condition, inner = loop_functions(self.segmented, gradient)
        is_counted = is_number(gradient.inputs[0], 0) and counts_from_zero(self.segmented, gradient, 0)
        test = origin(condition.outputs[0]).producer
        is_limited = is_less(test) and [origin(v) for v in test.inputs] == list(condition.inputs[:2])
        require(is_counted and is_limited and origin(inner.outputs[1]) is inner.inputs[1], "the gradient's rounds are counted otherwise")
        popped = {p: k for k, p in self.lists.items()}
        stays = returned_arguments(self.back_body)
        for p in range(self.back_count):
            value, result = origin(gradient.inputs[2 + p]), origin(body.outputs[p])
            if p in popped:
                filled = again.outputs[place_of[popped[p]]] if popped[p] in place_of else None
                require(value is filled, "the gradient pops from something else than the segment pushed")
                continue
            require(value is body.inputs[p], f"the gradient's value {p} enters a segment as something else")
            unchanged = result is body.inputs[p] and stays[p] == p
            require(unchanged or result is gradient.outputs[2 + p], f"the gradient's value {p} leaves a segment as something else")
        classes: list[Class] = [("value", p) for p in range(self.back_count)]
        own: list[Class] = [("round", 0), ("rounds", 0), *classes]
        self._same("the gradient's body", (self.back_body, classes, self.back_body.outputs), (inner, own, inner.outputs[2:]))

    def _same(
        self, what: str, expected: tuple[Graph, Sequence[Class], Sequence[Value]], actual: tuple[Graph, Sequence[Class], Sequence[Value]]
    ) -> None:
        require(self.numbers.of(*expected) == self.numbers.of(*actual), f"{what} is something else")


def _limit(test: Node, counter: Value) -> int:
    if not is_less(test) or origin(test.inputs[0]) is not counter:
        return 0
    array = constant_array(origin(test.inputs[1]).producer)
    return int(array) if array is not None and array.shape == () else 0
