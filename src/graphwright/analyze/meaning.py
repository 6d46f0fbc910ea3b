"""The meaning of a graph: value numbers, effects and their order. Nothing runs; the time is linear in the graph.

Value numbering (Alpern, Wegman and Zadeck, "Detecting Equality of Variables in Programs", POPL 1988): values made by the same operation,
with the same attributes, of values with the same numbers have the same number, whatever their names and however often they are computed. A
read of a variable is numbered by the writes before it.

Terms
-----
effect
    A node that is not pure: it writes a place (`effect_order.py`), prints, or draws by a hidden counter. It runs exactly once and is
    identified by its name; its operation, attributes and inputs are compared.
racing read
    A read that may come before or after a write of the same place. It is kept like an effect.
condition
    On which sides of which TF1 switches a node runs. It does not run after a dead input, control inputs included.

Known equalities: identities forward their input, and so do reshapes that lead back to a shape and private files (`private_files.py`).
n (n + 1) is even, which is the condition of gates that XLA does not see through (`source/opaque_gate.py`); a choice by a true condition is
its first branch; a sum of many terms is the sums of two in which its kernel adds them.

Gaps: loops of TF1, variables without handles, and operations that write into a tensor are refused. Devices, and attributes that begin with
"_", are not compared.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from graphwright.analyze.effect_order import EffectOrder, Order, Place, Same
from graphwright.analyze.part_numbers import Known, Number, PartNumbers
from graphwright.analyze.private_files import PrivateFiles, private_files
from graphwright.analyze.variable_access import run_nodes
from graphwright.errors import UnsupportedError
from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute
from graphwright.ir.constants import array_of, constant_array
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import add_in_kernel_order, adds_any_number
from graphwright.ir.traits.control_flow import (
    BRANCHES,
    ENTERS,
    LOOPS,
    MERGES,
    NEXT_ITERATIONS,
    SWITCHES,
    called_functions,
    function_at,
    is_control_flow,
)
from graphwright.ir.traits.effects import WRITES_INTO_INPUT, Purity
from graphwright.ir.traits.values import (
    IDENTITIES,
    PLACEHOLDERS,
    RESHAPES,
    before_reshapes,
    exact_shape,
    only_orders,
    origin,
    returned_arguments,
)
from graphwright.ir.traits.variables import reads_resource
from graphwright.ir.walk import backward_reachable, order_of
from graphwright.ir.wire import fields_of

Condition = frozenset[tuple[Number, int]]
"""Predicates, and which output of their switches."""
Defaults = Callable[[str], Mapping[str, Attribute]]

_ALWAYS: Condition = frozenset()
_REBUILT = re.compile(r"(__graphwright_\d+)+$")  # what `source/rebuild.py` puts behind the names of functions


@dataclass(frozen=True, slots=True)
class Effect:
    """A node that runs once."""

    number: int
    condition: Condition
    orders: Mapping[Place, Order]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a graph makes and does.

    Attributes:
        outputs: number per output, and its condition.
        effects: by name of the node.
        touched: the places that are read or written, and whether they are written.
        numbers: of each node, by name in topological order, to find the first difference.
        sums: number of sums of three and more terms, also in functions.
    """

    outputs: tuple[tuple[Number, Condition], ...]
    effects: Mapping[str, Effect]
    touched: Mapping[Place, bool]
    numbers: Mapping[str, int]
    sums: int


class Numbering:
    """Numbers that mean the same in all graphs read: first the original, then its replacement.

    Args:
        defaults: default attributes of an op type.
        parts: whether a value made in parts of the batch may stand for the whole (`part_numbers.py`).
    """

    def __init__(self, defaults: Defaults = lambda _: {}, *, parts: bool = False) -> None:
        self.defaults = cache(defaults)
        self._numbers: dict[object, int] = {}
        self.parts = PartNumbers(self.number, self.defaults) if parts else None
        self._bits: dict[str, int] = {}
        self._functions: dict[str, list[tuple[int, Meaning]]] = {}  # by their original names
        self.shapes: dict[Number, Shape] = {}  # of values of the original; another graph may not know them
        self.racing: set[tuple[str, str]] = set()  # the racing reads of the original: the function, and the node
        self.knows_original = False

    def number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def original(self, function: str = "", same: Same = ()) -> Known | None:
        """Return the original of a function, of which parts may be made; None if unknown."""
        return self.parts.known.get((function, same)) if self.parts is not None else None

    def bit(self, writer: str) -> int:
        return self._bits.setdefault(writer, len(self._bits))

    def meaning(self, graph: Graph, purity: Purity) -> Meaning:
        """Return the meaning of a graph.

        Raises `UnsupportedError` if it holds a loop of TF1, variables without handles, or operations that write into a tensor, `GraphError`
        if nodes wait for each other.
        """
        meaning = _Reader(self, graph, purity).read(graph)
        self.knows_original = True
        return meaning

    def function(self, name: str, meaning: Meaning) -> int:
        """Return the number of a function: that of an equal function, or of an original that it can replace, else a new one."""
        known = self._functions.setdefault(original_name(name), [])
        fitting = [(number, other) for number, other in known if not first_difference(other, meaning)]
        equal = [(number, other) for number, other in fitting if not first_difference(meaning, other)]
        if equal or (fitting and self.knows_original):
            return (equal or fitting)[0][0]
        number = self.number(("function", name, len(known)))
        known.append((number, meaning))
        return number


def original_name(function: str) -> str:
    """Return the name that a function had before it was rebuilt.

    >>> original_name("body_7__graphwright_12")
    'body_7'
    """
    return _REBUILT.sub("", function)


def first_difference(original: Meaning, other: Meaning) -> str:
    """Return why a graph cannot replace the original, naming a node; "" if it can.

    It must make the same outputs and have the same effects, in an order that the original allows.
    """
    for name, effect in original.effects.items():
        found = other.effects.get(name)
        if found is None:
            return f"{name!r} runs no more"
        if found.number != effect.number:
            return f"{name!r} does something else{_origin(original, other, name)}"
        if found.condition != effect.condition:
            return f"{name!r} runs on another condition"
        for place, order in effect.orders.items():
            now = found.orders.get(place, Order(0, 0))
            if order.before & ~now.before or order.behind & ~now.behind:
                where = f"input {place[1]}" if isinstance(place, tuple) else place
                return f"{name!r} may run too early or too late for another access of {where}"
    added = next((name for name in other.effects if name not in original.effects), "")
    if added:
        return f"{added!r} is new, and has an effect, or reads what may change meanwhile"
    if len(original.outputs) != len(other.outputs):
        return f"it has {len(other.outputs)} outputs for {len(original.outputs)}"
    for k, (expected, found_output) in enumerate(zip(original.outputs, other.outputs, strict=True)):
        if expected != found_output:
            return f"output {k} is something else{_origin(original, other)}"
    return ""


def _origin(original: Meaning, other: Meaning, but: str = "") -> str:
    """Return the first node that computes something else under the same name, as a phrase."""
    known = original.numbers
    name = next((name for name, number in other.numbers.items() if name != but and known.get(name, number) != number), "")
    return f", from {name!r} on" if name else ""


class _Reader:
    def __init__(self, numbering: Numbering, graph: Graph, purity: Purity) -> None:
        self.numbering, self.graph, self.purity = numbering, graph, purity
        self._functions: dict[tuple[str, Same], tuple[Meaning, int] | None] = {}

    def read(self, body: Graph, function: str = "", same: Same = ()) -> Meaning:
        name = original_name(function)
        return _Body(self, body, name, same, self.numbering.original(name, same) if not function else None).meaning()

    def function(self, name: str, same: Same = ()) -> tuple[Meaning, int] | None:
        """Return a function's meaning and number, given which arguments are equal; None if it is not in the library."""
        if (name, same) not in self._functions:
            self._functions[name, same] = None  # for one that calls itself
            function = self.graph.functions.get(name)
            if function is not None:
                meaning = self.read(function.body, name, same)
                self._functions[name, same] = meaning, self.numbering.function(name, meaning)
        return self._functions[name, same]

    def touched(self, name: str, same: Same) -> Mapping[Place, bool] | None:
        known = self.function(name, same)
        return None if known is None else known[0].touched


class _Body:
    def __init__(
        self, reader: _Reader, body: Graph, function: str, same: Same, original: Known | None, arguments: Sequence[Number] | None = None
    ) -> None:
        self.reader, self.body, self.function, self.same = reader, body, function, same
        self.original, self.arguments = original, arguments
        runs = run_nodes(body)
        if function and not body.control_outputs:  # TensorFlow runs all that is stateful in a function that does not say what to run
            runs |= backward_reachable(node for node in body.nodes if not reader.purity.is_pure(node))
        self.nodes = order_of([node for node in body.nodes if node in runs])
        _refuse_what_has_no_proof(self.nodes)
        self.has_switches = any(node.op_type in SWITCHES for node in self.nodes)
        self.files = PrivateFiles() if function or self.has_switches else private_files(self.nodes)
        self.purity = reader.purity.but_for(self.files.nodes) if self.files.nodes else reader.purity
        self.order = EffectOrder(body, self.nodes, self.purity, reader.touched, reader.numbering.bit, function, same)
        self.numbers: dict[Value, Number] = {}
        self.shapes = {} if function else reader.numbering.shapes  # values of several functions may have one number
        self.conditions: dict[Value | Node, Condition] = {}

    def meaning(self) -> Meaning:
        number = self.reader.numbering.number
        effects: dict[str, Effect] = {}
        by_name: dict[str, int] = {}
        for k, value in enumerate(self.body.inputs):
            self.numbers[value] = (number("input"), k) if self.arguments is None else self.arguments[k]
        for node in self.nodes:
            self._note_condition(node)
            if self.purity.is_unseen(node):
                for value in node.outputs:
                    written = self.files.written.get(value)
                    self.numbers[value] = (number(("unseen", node.name)), value.index) if written is None else self.numbers[written]
                continue
            if (node.outputs and node.outputs[0] in self.numbers) or self._hands_on(node) or self._is_part(node):
                continue
            is_effect = self._is_effect(node)
            does = by_name[node.name] = number(self._key(node, is_effect))
            if is_effect:
                effects[node.name] = Effect(does, self.conditions.get(node, _ALWAYS), self.order.orders_of_effect(node))
                does = number(("effect", node.name))
            for value in node.outputs:
                self.numbers[value] = does, value.index
        parts = self.reader.numbering.parts
        if not self.reader.numbering.knows_original:
            self.shapes.update((self.numbers[value], shape) for value in self.numbers if (shape := exact_shape(value)) is not None)
        if parts is not None and not self.reader.numbering.knows_original and not self.has_switches:
            versions = {node.name: self._versions(node) for node in self.nodes if node.op_type in LOOPS}
            known = Known(self.body, {node.name: node for node in self.nodes}, self.numbers, versions, self.shapes)
            parts.known[self.function, self.same] = known
        outputs = tuple((self.numbers[value], self._condition_of(value)) for value in self.body.outputs)
        return Meaning(outputs, effects, self.order.touched, by_name, self._sums())

    def _is_part(self, node: Node) -> bool:
        """Number the outputs of a node that makes a part of a value, or joins parts; return whether it does."""
        parts = self.reader.numbering.parts
        if parts is None or self.has_switches or only_orders(node) or not self.purity.is_pure(node):
            return False
        is_loop = node.op_type in LOOPS
        if self._is_effect(node) if is_loop else reads_resource(node):
            return False
        versions = self._versions(node) if is_loop else ()
        numbers = parts.numbers(node, self.numbers, self.original, versions, self._read_part)
        self.numbers.update(zip(node.outputs, numbers or (), strict=numbers is not None))
        return numbers is not None

    def _read_part(
        self, copy: Node, loop: Node, attribute: str, arguments: Callable[[Known], Sequence[Number]]
    ) -> tuple[Known, list[Number]] | None:
        """Return the original of a loop's function and the copy's results; None if it has effects or is unknown."""
        same, name = self.order.same_arguments(copy), original_name(called_functions(loop, attribute)[0])
        known, function = self.reader.numbering.original(name, same), function_at(copy, attribute, self.reader.graph)
        if known is None or function is None or len(known.body.inputs) != len(function.body.inputs):
            return None
        meaning = _Body(self.reader, function.body, name, same, known, arguments(known)).meaning()
        return None if meaning.effects else (known, [number for number, _ in meaning.outputs])

    def _shape(self, value: Value) -> Shape:
        shape = exact_shape(value)
        return self.shapes.get(self.numbers[value]) if shape is None else shape

    def _versions(self, node: Node) -> tuple[tuple[Place, int], ...]:
        """Return the writes that precede a node to the places that it reads."""
        return tuple((place, order.before) for place, order in self.order.orders(node).items())

    def _is_effect(self, node: Node) -> bool:
        if only_orders(node):
            return False
        if not self.purity.is_pure(node):
            return True
        numbering, read = self.reader.numbering, (self.function, node.name)
        races = not self.order.is_fixed(node)
        if races and not numbering.knows_original:
            numbering.racing.add(read)
        return races or read in numbering.racing

    def _key(self, node: Node, is_effect: bool) -> object:
        inputs: list[object] = [self.numbers[value] for value in node.inputs]
        if node.op_type in MERGES:  # it hands on the input that is there
            inputs = [(number, self._condition_of(value)) for number, value in zip(inputs, node.inputs, strict=True)]
        if not inputs and node.op_type in PLACEHOLDERS:
            inputs = [node.name]
        attrs = {**self.reader.numbering.defaults(node.op_type), **node.attrs}
        same = self.order.same_arguments(node)
        call = self._plain(FunctionReference(node.op_type), same) if node.op_type in self.reader.graph.functions else node.op_type
        attributes = tuple((name, self._plain(attrs[name], same)) for name in sorted(attrs) if _says_what(node, name))
        return call, tuple(inputs), attributes, () if is_effect else self._versions(node)

    def _plain(self, attribute: Attribute, same: Same) -> object:
        if isinstance(attribute, tuple):
            return tuple(self._plain(item, same) for item in attribute)
        if isinstance(attribute, FunctionReference):
            known = self.reader.function(attribute.name, same)
            fields = tuple((field.number, field.content) for field in fields_of(attribute.serialized) if field.number != 1)  # not its name
            return ("function", known[1], fields) if known is not None else ("unknown function", attribute.name, fields)
        if isinstance(attribute, SerializedAttribute):
            array = array_of(attribute)  # TensorFlow may write one tensor in several encodings
            if array is None:
                return hashlib.blake2b(attribute.data, digest_size=32).digest()
            return array.shape, hashlib.blake2b(array.tobytes(), digest_size=32).digest()  # its dtype is an attribute of its own
        if isinstance(attribute, float):  # 0.0 and -0.0 are equal in Python
            return "float", attribute.hex()
        return type(attribute).__name__, attribute  # so are 1 and True

    def _sums(self) -> int:
        called = dict.fromkeys(name for node in self.nodes for name in called_functions(node))
        inside = (self.reader.function(name) for name in called)
        return sum(adds_any_number(node) and len(node.inputs) > 2 for node in self.nodes) + sum(f[0].sums for f in inside if f is not None)

    # What only hands on

    def _hands_on(self, node: Node) -> bool:
        """Number the outputs of a node that only forwards inputs; return whether it does."""
        # In bodies of functions shapes may be known in one of the graphs alone, which would number the same reshapes in two ways.
        if not self.function and node.op_type in RESHAPES:
            [value] = node.outputs
            own = self.numbers[value] = self.reader.numbering.number(self._key(node, False)), 0
            if (shape := exact_shape(value)) is not None:
                self.shapes.setdefault(own, shape)
            self.numbers[value] = self.numbers[before_reshapes(value, self._shape)]
            return self.numbers[value] != own
        numbering = self.reader.numbering
        if adds_any_number(node) and numbering.parts is None and node.outputs[0].dtype.name != "variant":
            terms = [self.numbers[value] for value in node.inputs]
            self.numbers[node.outputs[0]] = add_in_kernel_order(terms, lambda a, b: (numbering.number(("sum", a, b)), 0))
            return True
        if node.op_type in IDENTITIES:
            places: Sequence[int | None] = range(len(node.inputs))
        elif node.op_type == "SelectV2" and self._shape(node.inputs[2]) == () and self._is_always_true(node.inputs[0]):
            places = [1]
        elif node.op_type in BRANCHES and self._is_always_true(node.inputs[0]):
            places = self._results_of_first_branch(node)
        else:
            return False
        if not places or None in places:
            return False
        for value, k in zip(node.outputs, places, strict=True):
            assert k is not None
            self.numbers[value] = self.numbers[node.inputs[k]]
        return True

    def _results_of_first_branch(self, node: Node) -> Sequence[int | None]:
        """Return the inputs that the first branch returns unchanged; () if it does anything else."""
        function = function_at(node, "then_branch", self.reader.graph)
        if function is None or not self.purity.is_pure(node):
            return ()
        return [None if k is None else 1 + k for k in returned_arguments(function.body)]

    def _is_always_true(self, value: Value) -> bool:
        if value.shape != ():
            return False
        parity, zero = _operands(value, "Equal")
        product, one = _operands(parity, "BitwiseAnd")
        n, following = _operands(product, "Mul")
        same, step = _operands(following, "AddV2")
        if n is None or same is None or n.dtype.name not in ("int32", "int64") or self.numbers.get(n) != self.numbers.get(same):
            return False
        return _is_number(zero, 0) and _is_number(one, 1) and _is_number(step, 1)

    # Conditions

    def _condition_of(self, value: Value) -> Condition:
        return self.conditions.get(value) or self.conditions.get(value.producer, _ALWAYS)

    def _note_condition(self, node: Node) -> None:
        if not self.has_switches:
            return
        of_inputs = [self._condition_of(value) for value in node.inputs]
        condition = self._either(of_inputs) if node.op_type in MERGES else _ALWAYS.union(*of_inputs)
        self.conditions[node] = condition.union(*(self.conditions[control] for control in node.control_inputs))
        if node.op_type in SWITCHES:
            for value in node.outputs:
                self.conditions[value] = self.conditions[node] | {(self.numbers[node.inputs[1]], value.index)}

    def _either(self, conditions: Sequence[Condition]) -> Condition:
        """Return the condition when one of several holds: the common part if two differ by one switch only."""
        common = conditions[0].intersection(*conditions)
        rest = [sorted(condition - common) for condition in conditions]
        if len(rest) == 2 and all(len(one) == 1 for one in rest) and rest[0][0][0] == rest[1][0][0]:
            return common
        return common | {((self.reader.numbering.number(("one of", frozenset(conditions))), 0), 0)}


def _says_what(node: Node, name: str) -> bool:
    return name[0] != "_" and not (name in ("output_shapes", "parallel_iterations") and is_control_flow(node))


def _operands(value: Value | None, op_type: str) -> tuple[Value, Value] | tuple[None, None]:
    node = origin(value).producer if value is not None else None
    return (node.inputs[0], node.inputs[1]) if node is not None and node.op_type == op_type else (None, None)


def _is_number(value: Value | None, expected: int) -> bool:
    array = constant_array(origin(value).producer) if value is not None else None
    return array is not None and array.shape == () and int(array) == expected


def _refuse_what_has_no_proof(nodes: Sequence[Node]) -> None:
    for node in nodes:
        what = ""
        if node.op_type in WRITES_INTO_INPUT:
            what = f"{node.name!r} ({node.op_type}) writes into a tensor, which cannot be proved equal by structure"
        elif node.op_type in ENTERS or node.op_type in NEXT_ITERATIONS:
            what = f"the TF1 loop around {node.name!r} cannot be proved equal by structure"
        elif any(value.dtype.name.endswith("_ref") for value in node.outputs):
            what = f"{node.name!r} ({node.op_type}) is read by reference, which cannot be proved equal by structure"
        if what:
            raise UnsupportedError(
                what,
                where=f"node {node.name!r}",
                cause="the step holds control flow or variables of TF1, or writes in place",
                remedy="use tf.while_loop, tf.Variable and tf.tensor_scatter_nd_update of TF2",
            )
