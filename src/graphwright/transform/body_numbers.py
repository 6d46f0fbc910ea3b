"""Value numbers inside functions without effects: values have the same number when they are computed alike from equal arguments.

The *class* of an argument identifies it: arguments of one class are the same value.
"""

from collections.abc import Mapping, Sequence

from graphwright.ir.attributes import Attribute, FunctionReference
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import IDENTITIES
from graphwright.ir.walk import backward_reachable, order_of

Class = tuple[str, object]


class DifferenceError(Exception):
    """A loop does not follow the scheme of a proof."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DifferenceError(otherwise)


class BodyNumbers:
    """Gives values their numbers."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}

    def of(
        self, body: Graph, arguments: Sequence[Class], wanted: Sequence[Value], classes: Mapping[Value, Class] | None = None
    ) -> list[tuple[int, int]]:
        """Return numbers of values of a function, classes the classes of its arguments and of other values."""
        known = {value: (self._of_class(item), 0) for value, item in (classes or {}).items()}
        numbers: dict[Value, tuple[int, int]] = {
            value: (self._of_class(item), 0) for value, item in zip(body.inputs, arguments, strict=True)
        }
        needed = backward_reachable(v.producer for v in wanted) - {v.producer for v in body.inputs}
        for node in order_of([node for node in body.nodes if node in needed]):
            if node.op_type in IDENTITIES and len(node.outputs) == 1:
                numbers[node.outputs[0]] = numbers[node.inputs[0]]
                continue
            number = self._number(self._key(body, node, [numbers[v] for v in node.inputs]))
            numbers.update((value, known.get(value, (number, value.index))) for value in node.outputs)
        return [numbers[v] for v in wanted]

    def _key(self, body: Graph, node: Node, inputs: Sequence[tuple[int, int]]) -> object:
        names = [name for name in sorted(node.attrs) if name[0] != "_" and name != "output_shapes"]
        return node.op_type, tuple(inputs), tuple((name, self._plain(body, node.attrs[name])) for name in names)

    def _of_class(self, item: Class) -> int:
        return self._number(("argument", item))

    def _number(self, key: object) -> int:
        return self._known.setdefault(key, len(self._known))

    def _plain(self, body: Graph, attribute: Attribute) -> object:
        if isinstance(attribute, tuple):
            return tuple(self._plain(body, item) for item in attribute)
        if isinstance(attribute, FunctionReference):
            function = body.functions[attribute.name].body
            places: list[Class] = [("value", k) for k in range(len(function.inputs))]
            return "function", tuple(self.of(function, places, function.outputs)), attribute.serialized
        return type(attribute).__name__, attribute.hex() if isinstance(attribute, float) else attribute
