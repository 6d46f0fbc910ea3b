"""Rules by op type for sizes of the batch that no shape contradicts, such as the end of a slice or the trip count of a loop.

Such a number follows the batch only if the graph shows that it counts the examples. If that is not known, the node is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from graphwright.analyze.frames import frame_names
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.arithmetic import SCALES
from graphwright.ir.traits.control_flow import LOOPS, MERGES, NEXT_ITERATIONS, called_functions, is_back_edge, is_loop_condition
from graphwright.ir.traits.rounds import is_both, is_less, is_list, reserves, unstacks
from graphwright.ir.traits.values import IDENTITIES, RESHAPES
from graphwright.ops.dimensions import Dimensions, whole
from graphwright.ops.elementwise import by_elements
from graphwright.ops.sizes import number
from graphwright.transform.batch_rows import map_rows
from graphwright.transform.batch_trace import FORWARDS, LABELS, RUNS_FUNCTIONS, BatchTrace, RestartPassError, Rule, place_of_batch

_COUNTS_ON = frozenset("Range Tile BroadcastTo Transpose Pack ConcatV2".split()) | RESHAPES | IDENTITIES
_REPEATS = frozenset({"Tile", "BroadcastTo", "Fill"})
_REDUCES = frozenset({"Sum", "Mean"})
_SCATTERS = frozenset(f"TensorScatter{kind}" for kind in ("Update", "Add", "Sub", "Min", "Max"))
_PICKS = dict.fromkeys(["Gather", "GatherV2", "GatherNd", *_SCATTERS], (0, 1)) | {"CropAndResize": (0, 2)}
"""Op type -> the input whose rows are read or written, and the input that numbers them."""
_PLACES = {"OneHot": (1, 0), "ScatterNd": (2, 0)} | {f"UnsortedSegment{kind}": (2, 1) for kind in ("Sum", "Max", "Min", "Prod")}
"""Op type -> the input that starts with the number of rows, and the input that numbers them."""
_MASKS = ("shrink_axis", "begin", "end", "new_axis", "ellipsis")


def _reshape(trace: BatchTrace, node: Node) -> None:
    value, result = node.inputs[0], node.outputs[0]
    before, after, grown = trace.before[value], trace.before[result], trace.grown(value)
    sizes = trace.array(node, 1) if node.op_type == "Reshape" else None
    if not grown and None in (before or (None,)) and sizes is not None and trace.old > 1 and (sizes == trace.old).any():
        why = f"brings an unknown number of elements into {sizes.tolist()}; whether {trace.old} is the batch is not known"
        trace.refuse(node, why)
    digits: dict[int, tuple[int, ...]] = {}
    for axis in grown:
        sizes_before = (before or ())[:axis]
        front = None if None in sizes_before else math.prod(d or 0 for d in sizes_before)
        ones = sizes_before.count(1) if front == 1 else 0
        for digit in trace.digits.get((value, axis), (1,) * trace.power(value, axis)):
            position = None if front is None else front * digit
            place = place_of_batch(after, position, trace.size(value, axis), trace.old, ones)
            if place is None:
                trace.refuse(node, f"brings {before} into {after}; which of these sizes is the batch is not known")
            digits[place[0]] = (*digits.get(place[0], ()), place[1])
    if trace.old == 1 and sum(map(len, digits.values())) > 1:
        trace.refuse(node, f"brings {before} into {after}, of which several dimensions are the batch; which ones is not known")
    trace.digits.update(((result, axis), places) for axis, places in digits.items())
    for axis, places in digits.items() if node.op_type == "Reshape" else ():
        trace.scale(node, 1, axis, len(places))


def _cut(trace: BatchTrace, node: Node) -> None:
    """Let slices of the whole batch follow it; slices that are the same for all sizes stay."""
    value, is_strided, old = node.inputs[0], node.op_type == "StridedSlice", trace.old
    begins, ends = (None if (array := trace.array(node, k)) is None else array.tolist() for k in (1, 2))
    shrinks, *masks = (number(node, f"{name}_mask") for name in _MASKS)
    axis, places = 0, (trace.size(node.inputs[1], 0) or 0) if is_strided else len(trace.before[value] or ())
    for k in range(places):
        is_begin, is_end, is_new, is_rest = (mask >> k & 1 for mask in masks)
        if is_rest:
            axis = len(trace.before[value] or ()) - sum(not masks[2] >> j & 1 for j in range(k + 1, places))
        if is_rest or is_new:
            continue
        size, begin = trace.size(value, axis) or 0, 0 if is_begin else None if begins is None else begins[k]
        axis += 1
        if not trace.power(value, axis - 1):
            continue
        if shrinks >> k & 1:
            if begin is None:
                _count_rounds(trace, node, size, size * 2, axis - 1)
            elif old == 1 or begin not in (0, -1):
                _map_rows(trace, node, f"reads example {begin} of {size} alone")
        elif begin is not None and ends is not None:
            end = ends[k] if is_strided or ends[k] < 0 else begin + ends[k]
            is_open = is_end or end < 0 or (is_strided and end >= 2**31 - 1)
            fits = begin <= 0 or begin % old == 0 or ((is_open or end == size) and old > 1)
            if not fits or not (is_open or end % old == 0 or (begin == 0 and end == 1)):
                trace.refuse(node, f"takes examples {begin} to {end} of {size}", "how many of another batch that is, is not known")
            if begin > 0 and begin % old == 0:
                trace.scale(node, 1, k)
            if not is_open and ends[k] % old == 0:
                trace.scale(node, 2, k)


def _split(trace: BatchTrace, node: Node) -> None:
    value = node.inputs[node.op_type == "Split"]
    along = number(node, "axis") if node.op_type == "Unpack" else trace.array(node, 0 if node.op_type == "Split" else 2)
    if along is None or not trace.power(value, int(along)):
        return
    sizes = trace.array(node, 1) if node.op_type == "SplitV" else None
    if sizes is not None and not (sizes % trace.old).any():
        for element in range(sizes.size):
            trace.scale(node, 1, element)
    elif node.op_type != "Split" or len(node.outputs) % trace.old == 0:
        _map_rows(trace, node, f"takes the {trace.size(value, int(along))} examples apart into {len(node.outputs)} values")


def _map_rows(trace: BatchTrace, node: Node, why: str) -> None:
    rows: dict[Value, tuple[Value, int]] = {}
    for each in node.graph.nodes:
        if each.op_type in ("Unpack", "Split", "StridedSlice"):
            value = each.inputs[each.op_type == "Split"]
            begin = trace.array(each, 1) if each.op_type == "StridedSlice" else None
            axis = trace.array(each, 0) if each.op_type == "Split" else number(each, "axis")
            if begin is not None and begin.size == number(each, "shrink_axis_mask") == 1 and trace.size(value, 0) == trace.old:
                rows[each.outputs[0]] = value, int(begin[0]) % trace.old
            elif begin is None and axis == 0 and trace.size(value, 0) == len(each.outputs) == trace.old:
                rows.update((v, (value, k)) for k, v in enumerate(each.outputs))
    for mapped, own in map_rows(node.graph, rows, trace.old, trace.before):
        read = tuple(("n", *whole(len(v.last_shape or ()) - 1)) if k < own else () for k, v in enumerate(mapped.inputs))
        trace.labels[mapped] = Dimensions(read, ("n", *whole(len(mapped.outputs[0].last_shape or ()) - 1)))
    if node.graph.owns(node) and any(v.uses for v in node.outputs):
        trace.refuse(node, why, "not the same is done to each, or the results are not joined in their order")
    raise RestartPassError


def _pick(trace: BatchTrace, node: Node) -> None:
    data, index = _PICKS[node.op_type]
    along, numbers = trace.array(node, 2) if node.op_type == "GatherV2" else np.array(0), trace.array(node, index)
    axis = 0 if along is None else int(along)
    size, power = trace.size(node.inputs[data], axis), trace.power(node.inputs[data], axis)
    if node.op_type in _SCATTERS and trace.power(node.inputs[2], 0):
        trace.grow(node, index, 0)
    if numbers is None and size is not None and math.prod(d or 0 for d in trace.before[node.inputs[index]] or ()) == 1:
        _count_rounds(trace, node, size, size * 2**power, axis)
    elif not power:
        if node.inputs[index] in trace.counting and size == trace.old:
            trace.grow(node, data, axis)
    elif numbers is not None:
        picked = (numbers[..., 0] if node.op_type in {"GatherNd", *_SCATTERS} else numbers).reshape(-1)
        if numbers.ndim and np.array_equal(picked, np.arange(size or 0)):
            trace.grow(node, index, 0)
        elif picked.any() or trace.old == 1:
            trace.refuse(node, f"picks examples {picked[:8].tolist()} by number", "which these are of another batch is not known")


def _order(trace: BatchTrace, node: Node) -> None:
    value = node.inputs[0]
    last, count = len(trace.before[value] or ()) - 1, trace.array(node, 1)
    if trace.power(value, last) and count is not None and int(count) == trace.size(value, last):
        trace.scale(node, 1)


def _place(trace: BatchTrace, node: Node) -> None:
    sized, index = _PLACES[node.op_type]
    array = trace.array(node, sized)
    if node.inputs[index] in trace.counting and array is not None and array.reshape(-1)[0] == trace.old:
        trace.scale(node, sized)


def _forget(trace: BatchTrace, node: Node) -> None:
    shape, (before, after) = node.attrs.get("shape"), trace.length(node.inputs[0])
    if before != after:
        node.graph.set_attr(node, "num_elements", -1)
    if isinstance(shape, ShapeAttribute) and shape.shape is not None:
        grown = trace.grown(node.inputs[0])
        node.graph.set_attr(node, "shape", ShapeAttribute(tuple(None if k in grown else d for k, d in enumerate(shape.shape))))


# Loops


def _round(trace: BatchTrace, node: Node) -> None:
    _count_rounds(trace, node, *trace.length(node.inputs[0]))


def _count_rounds(trace: BatchTrace, node: Node, before: int | None, after: int | None, axis: int = 0) -> None:
    """Let a loop that reads or writes one of `before` rows in each round make as many rounds."""
    bounds = list(_bounds(trace, node))
    known = [(n, k, array) for n, k in bounds if (array := trace.array(n, k)) is not None]
    same = [(n, k) for n, k, array in known if array == before]
    if before is None or not known:
        return
    if after != before:
        if not same and len(known) == len(bounds):
            trace.refuse(node, f"reads one of {before} examples in each round of a loop that makes {known[0][2]} rounds")
        for n, k in same:
            trace.scale(n, k)
    elif any(trace.array(n, k, larger=True) != before for n, k in same):
        value, producer = node.inputs[0], node.inputs[0].producer
        if not is_list(value):
            trace.grow(node, 0, axis)
            return
        while (source := trace.forwarded(value)) is not None or (producer.graph in trace.callers and value in producer.graph.inputs):
            if source is None:
                caller, offset = trace.callers[producer.graph]
                source = caller.inputs[offset + producer.graph.inputs.index(value)]
            value, producer = source, source.producer
        if unstacks(producer):
            trace.grow(producer, 0, 0)
        elif reserves(producer):
            trace.scale(producer, 1)
        else:
            trace.refuse(node, f"reads or writes one of {before} rows in each round of a loop over the batch")


def _bounds(trace: BatchTrace, node: Node) -> Iterator[tuple[Node, int]]:
    """Yield the inputs that the condition of the loop around a node compares with its counters."""
    graph, frames = node.graph, frame_names(node.graph)
    waiting = [n for n in graph.nodes if is_loop_condition(n) and frames.get(node) == frames.get(n)]
    while not waiting and graph in trace.callers:
        caller, _ = trace.callers[graph]
        graph = caller.graph
        if caller.op_type in LOOPS:
            waiting = [graph.functions[called_functions(caller, "cond")[0]].body.outputs[0].producer]
    while waiting:
        producer = waiting.pop()
        if is_less(producer):
            yield producer, 1
        elif is_both(producer) or producer.op_type in FORWARDS:
            waiting += [v.producer for v in producer.inputs]


def _meet(trace: BatchTrace, node: Node) -> None:
    merges = [node] if node.op_type in MERGES else [n for n in node.outputs[0].consumers if n.op_type in MERGES]
    ways = [(n, k) for n in merges for k, v in enumerate(n.inputs) if not is_back_edge(v, n)]
    if node.op_type not in MERGES:
        ways.append((node, 0))
        trace.depend_later(n.outputs[0] for n in merges)
    for axis in {axis for n, k in ways for axis in trace.grown(n.inputs[k])}:
        for n, k in ways:
            trace.grow(n, k, axis)


# Means


def _divide(trace: BatchTrace, node: Node) -> None:
    """Adapt the divisor of a sum over the batch, if the sum is a mean.

    The gradient of a `Mean` is proved to be one: it is repeated to the shape of the mean's input and divided by the number of elements.
    For other sums, the graph does not show what the divisor counts.
    """
    is_product = node.op_type.startswith("Mul")
    for k in (0, 1) if is_product else (1,):
        sizes, degree, is_repeated = trace.terms.get(node.inputs[1 - k], ((), 0, False))
        array = trace.array(node, k)
        if not degree or array is None or array.size != 1 or not array.any():
            continue
        divisor = float(array.reshape(())) ** (-1 if is_product else 1)
        count = round(divisor) if abs(divisor - round(divisor)) <= 1e-5 * abs(divisor) else 0
        products = {math.prod(part) for n in range(len(sizes) + 1) for part in combinations(sizes, n)}
        is_one_batch = count > 0 and count % trace.old == 0 and count // trace.old in products
        power = degree if count == math.prod(sizes) else int(is_one_batch)
        means = [n for n, its in trace.labels.items() if n.graph is node.graph and its.term and its.divisor == count]
        is_proved = is_repeated and any(trace.before[n.inputs[0]] == trace.before[node.outputs[0]] for n in means)
        if power and trace.old > 1 and (trace.means or (is_proved and trace.means is None)):
            trace.scale(node, k, 0, -power if is_product else power)
        elif trace.means is not False and count and (power or count % trace.old == 0 or (is_product and count in products)):
            trace.refuse_mean(node, f"divides a sum over the batch by {count}")


# Notes


def note(trace: BatchTrace, node: Node) -> None:
    """Note facts for later rules: places of the batch in dimensions, sums over the batch, and numbers of examples."""
    labels = trace.labels.get(node)
    if trace.old == 1 and node.op_type not in RESHAPES | FORWARDS | RUNS_FUNCTIONS:
        _check_apart(trace, node, labels)
    if node.op_type not in RESHAPES:
        _note_digits(trace, node, labels)
    _note_terms(trace, node, labels)
    goes_on = node.op_type in _COUNTS_ON or LABELS.get(node.op_type) is by_elements
    if goes_on and (node.inputs[0] in trace.counting or (node.op_type == "Range" and trace.grown(node.outputs[0]))):
        trace.counting.add(node.outputs[0])


def _check_apart(trace: BatchTrace, node: Node, labels: Dimensions | None) -> None:
    """With a batch of one example, refuse to compute along a dimension that holds the example and more."""
    for k, axis in ((k, a) for k, v in enumerate(node.inputs) for a in trace.grown(v) if (trace.size(v, a) or 1) > 1):
        label = None if labels is None else labels.inputs[k][axis]
        is_product = labels is not None and labels.sums and len(node.inputs) > 1 and node.op_type not in _REDUCES
        if label is None or labels is None or not (label in labels.output or is_product):
            trace.refuse(node, f"computes along dimension {axis} of {node.inputs[k].name!r}, which holds the example and more")


def _note_digits(trace: BatchTrace, node: Node, labels: Dimensions | None) -> None:
    read = [(k, v, a) for k, v in enumerate(node.inputs) for a in trace.grown(v) if (v, a) in trace.digits]
    for value, axis in ((v, a) for v in node.outputs if read for a in trace.grown(v)):
        for k, source, other in read:
            same = labels is None or labels.inputs[k][other : other + 1] == labels.output[axis : axis + 1]
            if same and trace.size(source, other) == trace.size(value, axis):
                trace.digits[value, axis] = trace.digits[source, other]


def _note_terms(trace: BatchTrace, node: Node, labels: Dimensions | None) -> None:
    own = [value for value in node.inputs if value.producer in trace.baked]
    if not node.outputs or (own and node.op_type in SCALES):
        return
    result = node.outputs[0]
    if labels is not None and labels.sums and labels.divisor == 1 and not labels.term:
        read = {label: (v, a) for each, v in zip(labels.inputs, node.inputs, strict=True) for a, label in enumerate(each)}
        summed = [place for label, place in read.items() if label is not None and label not in labels.output]
        degree = sum(trace.power(*place) for place in summed)
        if degree and trace.old == 1 and trace.means is not False:
            trace.refuse_mean(node, "sums over the one example")
        if degree:
            trace.terms[result] = tuple(trace.size(*place) or 0 for place in summed), degree, False
    elif own and node.op_type in _REPEATS:
        count = math.prod(d or 0 for d in trace.before[result] or ())
        repeated = max((math.prod(d or 0 for d in trace.before[v] or ()) for v in node.inputs if v not in own), default=1)
        trace.terms[result] = (count // max(repeated, 1),), 1, True
    elif node.op_type in RESHAPES | FORWARDS or LABELS.get(node.op_type) is by_elements:
        terms = {trace.terms[v] for v in node.inputs if v in trace.terms}
        trace.terms.update({result: terms.pop()} if len(terms) == 1 else {})


RULES: dict[str, Rule] = {
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(("StridedSlice", "Slice"), _cut),
    **dict.fromkeys(("Unpack", "Split", "SplitV"), _split),
    **dict.fromkeys(_PICKS, _pick),
    **dict.fromkeys(_PLACES, _place),
    **dict.fromkeys(("TensorListGetItem", "TensorListSetItem"), _round),
    **dict.fromkeys(MERGES | NEXT_ITERATIONS, _meet),
    **dict.fromkeys(SCALES, _divide),
    **dict.fromkeys(("EnsureShape", "TensorListStack"), _forget),
    "TopKV2": _order,
}
