"""A rule for shapes, as TensorFlow has one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import Shape, common_shape
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.control_flow import result_functions


class Rule:
    """Calls give what their functions give, `Add` asks for equal shapes, `Twice` doubles the first dimension, `Merge` keeps what its inputs
    agree on, and all else has the shape of its input, or of its attribute `shape`.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, nodes: Sequence[Node]) -> list[list[Shape]]:
        inside: dict[Value, Shape] = {}
        answers: list[list[Shape]] = []
        for node in nodes:
            self.asked.append(node.name)
            bodies = [node.graph.functions[name].body for name in result_functions(node) if name in node.graph.functions]
            if bodies:
                answers.append([reduce(common_shape, same) for same in zip(*([v.shape for v in b.outputs] for b in bodies), strict=True)])
            else:
                answers.append([self._shape(node, [inside.get(v, v.shape) for v in node.inputs])] * len(node.outputs))
            inside.update(zip(node.outputs, answers[-1], strict=True))
        return answers

    def _shape(self, node: Node, read: list[Shape]) -> Shape:
        known = [shape for shape in read if shape is not None]
        if node.op_type == "Refused" or (node.op_type == "Add" and any(shape != known[0] for shape in known)):
            raise ValueError(f"shapes {known} differ")
        if not read:
            attribute = node.attrs.get("shape")
            return attribute.shape if isinstance(attribute, ShapeAttribute) else node.outputs[0].last_shape
        if node.op_type == "Merge":
            return read[0] if all(shape == read[0] for shape in read) else None
        if node.op_type == "Twice" and read[0]:
            return (None if read[0][0] is None else 2 * read[0][0], *read[0][1:])
        return read[0]
