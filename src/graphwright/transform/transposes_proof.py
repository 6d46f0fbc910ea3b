"""The proof that loops which take matrices transposed before them compute what they did. Nothing runs; it knows the scheme, and nothing of
the code that rewrites.

For each such loop, against the one of the same name in the original:

- Each value that it takes is the original's, or the transpose of a matrix. That matrix is what the original hands on unchanged, or what
  another loop pushed in every round onto the list that the original pops once per round: a value which that one hands on, or that of a
  variable which nothing writes before either loop has ended.
- With that, its condition and its body compute the same, node by node, by value numbering; a product that takes a matrix transposed is one
  that takes the transpose as it is.
- Nobody reads what it hands on of the matrix, nor of the list; the loop that filled the list computes all else that it did.

Everything else is compared by `transform.proof`, with the original loops put back.
"""

from collections.abc import Collection, Mapping

from graphwright.analyze.loop_pairs import is_first_value, loop_functions, popped_lists, pushed_value, readers_of, same_in_each_round
from graphwright.errors import GraphwrightError
from graphwright.ir.constants import constant_array
from graphwright.ir.edit.clone import clone, copy_graph
from graphwright.ir.edit.library import rename_functions, unique_function_name
from graphwright.ir.edit.prune import prune
from graphwright.ir.edit.reroute import replace_node
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import transposes
from graphwright.ir.traits.control_flow import LOOPS, called_functions
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import origin
from graphwright.ir.traits.variables import is_read, resource_of
from graphwright.transform.body_numbers import TRANSPOSED, BodyNumbers, Class, DifferenceError, require
from graphwright.transform.proof import Original


def transposes_difference(graph: Graph, purity: Purity, rewritten: Graph, loops: Collection[str]) -> str:
    """What keeps a graph whose loops take matrices transposed from standing for the original; "" where nothing does.

    Args:
        purity: of the original.
        loops: the names of these loops.

    >>> transposes_difference(Graph(), Purity(Graph(), {}), Graph(), [])
    ''
    """
    whole = copy_graph(rewritten).graph
    matrices: dict[str, dict[int, Value]] = {}
    emptied: dict[str, set[int]] = {}
    try:
        for name in loops:
            require(name in graph and name in rewritten and {graph[name].op_type, rewritten[name].op_type} <= LOOPS, f"{name!r} is no loop")
            matrices[name] = _matrices(graph[name], purity, rewritten[name])
            for source in _lists(graph[name], matrices[name]).values():
                emptied.setdefault(source.producer.name, set()).add(source.index)
        for name in {**emptied, **matrices}:  # first those that fill lists
            _compare(graph[name], rewritten[name], matrices.get(name, {}), emptied.get(name, set()))
            _put_back(graph[name], rewritten[name], matrices.get(name, {}), whole)
        prune(whole)
        return Original(graph, purity).compare(whole, purity.of(whole)).difference
    except DifferenceError as difference:
        return f"matrices transposed before loops: {difference}"
    except GraphwrightError as error:
        return error.what


def _lists(before: Node, matrices: Mapping[int, Value]) -> dict[int, Value]:
    """The lists of the original that matrices stand for now."""
    return {p: source for p, source in popped_lists(before.graph, before).items() if p in matrices}


def _matrices(before: Node, purity: Purity, after: Node) -> dict[int, Value]:
    """By position, the matrices that a loop takes transposed now, each of which is the one that the original's products take."""
    require(len(before.inputs) == len(after.inputs), f"{before.name!r} has another number of values")
    body, other = loop_functions(before.graph, before)[1], loop_functions(after.graph, after)[1]
    lists, found = popped_lists(before.graph, before), dict[int, Value]()
    for p, (value, given) in enumerate(zip(before.inputs, after.inputs, strict=True)):
        if given.name == value.name and given.dtype == value.dtype:  # whether it is the same value is seen in the whole
            continue
        matrix = _transposed(given)
        is_handed_on = matrix is not None and same_in_each_round(other, other.inputs[p]) == p
        require(is_handed_on, f"value {p} of {before.name!r} is neither the original's nor the transpose of a matrix that it hands on")
        assert matrix is not None
        is_read = any(readers_of(after.outputs[p])) or any(readers_of(before.outputs[p]))
        require(not is_read, f"what {before.name!r} hands on of value {p} is read")
        if p in lists:
            is_pushed = _is_pushed(lists[p], matrix, before, after, purity)
            require(is_pushed, f"{matrix.name} is not what {before.name!r} pops in each round")
        else:
            require(same_in_each_round(body, body.inputs[p]) == p, f"value {p} of {before.name!r} changes from round to round")
        found[p] = matrix
    return found


def _compare(before: Node, after: Node, matrices: Mapping[int, Value], emptied: Collection[int]) -> None:
    """See that a loop computes what the original does, but for the lists that nobody pops any more."""
    (condition, body), (other_condition, other) = loop_functions(before.graph, before), loop_functions(after.graph, after)
    require(len(before.inputs) == len(after.inputs), f"{before.name!r} has another number of values")
    for k in emptied:
        require(not any(readers_of(after.outputs[k])), f"list {k} of {before.name!r}, which the original fills, is read")
    classes: list[Class] = [("value", p) for p in range(len(before.inputs))]
    others: list[Class] = [(TRANSPOSED, item) if p in matrices else item for p, item in enumerate(classes)]
    popped = {origin(body.outputs[p]).producer.outputs[1]: classes[p] for p in _lists(before, matrices)}
    kept = [p for p in range(len(classes)) if p not in matrices and p not in emptied]
    numbers = BodyNumbers()
    same = numbers.of(condition, classes, condition.outputs) == numbers.of(other_condition, others, other_condition.outputs)
    require(same, f"the condition of {before.name!r} is something else")
    results = [[one.outputs[p] for p in kept] for one in (body, other)]
    same = numbers.of(body, classes, results[0], popped) == numbers.of(other, others, results[1])
    require(same, f"the body of {before.name!r} is something else")


def _put_back(before: Node, after: Node, matrices: Mapping[int, Value], whole: Graph) -> None:
    """Put a loop of the original back into a copy of the rewritten graph."""
    lists = {p: whole[source.producer.name].outputs[source.index] for p, source in _lists(before, matrices).items()}
    inputs = [lists.get(p) or whole.value(matrices[p].name if p in matrices else v.name) for p, v in enumerate(after.inputs)]
    names = [name for name in called_functions(before) if name in whole.functions]
    rename_functions(whole, {name: unique_function_name(whole, f"{name}_rewritten") for name in names})  # the original's have these
    made = clone([before], into=whole, input_map=dict(zip(before.inputs, inputs, strict=True)), rename=lambda name: f"{name}/as_it_was")
    whole.replace_inputs(made.node_of[before], inputs)
    replace_node(whole[before.name], made.node_of[before])


def _transposed(value: Value) -> Value | None:
    """The matrix of which a value is the transpose."""
    node = value.producer
    order = constant_array(origin(node.inputs[1]).producer) if transposes(node) else None
    return node.inputs[0] if order is not None and order.tolist() == [1, 0] else None


def _is_pushed(source: Value, matrix: Value, before: Node, after: Node, purity: Purity) -> bool:
    """Whether a matrix of the rewritten graph is what the original's loop pushes in each round onto a list."""
    pushed = pushed_value(source)
    if pushed is None or list(readers_of(source)) != [before]:
        return False
    found, matrix = origin(pushed), origin(matrix)
    reads = is_read(found.producer)
    place = same_in_each_round(loop_functions(before.graph, source.producer)[1], found.producer.inputs[0] if reads else found)
    if place is None or reads != is_read(matrix.producer):
        return False
    value = source.producer.inputs[place]
    if not reads:
        return origin(value).name == matrix.name
    handle = resource_of(matrix.producer.inputs[0])
    unwritten = is_first_value(value, before, purity) and is_first_value(handle, after, purity.of(after.graph))
    return unwritten and resource_of(value).name == handle.name
