"""Variables that are in a file between two runs of a step, and in memory only while the step works with them.

Before the first access the variable gets its value back, after the last one the value is written to a file and the variable keeps 128 bits
instead: the name of the file, which the system drew. All that the step does with the variable stays as it is. Where the variable has its
own value when the step starts (nobody has run the step yet, or somebody assigned one), that one counts and no file is read.

Each value has a file of its own, so that one which is copied with the variable, into another process as well, stays readable as long as
nobody runs a step with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphwright.ir.attributes import FunctionReference, ShapeAttribute
from graphwright.ir.constants import add_constant
from graphwright.ir.dtypes import DTYPES, DType, Shape
from graphwright.ir.edit.library import unique_function_name
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.traits.values import GONE, OFFLOADED, STATE_FILE, is_view
from graphwright.ir.traits.variables import is_read, written_resources
from graphwright.transform.offload import DRAWN_SHAPE, FileTexts, add, drawn_digits

SHAPE_OF_NAME: dict[float, tuple[int, ...]] = {2: (*DRAWN_SHAPE, 2), 4: DRAWN_SHAPE, 8: DRAWN_SHAPE[:-1]}
"""Of 128 bits, by the item size of a dtype; variables of other dtypes cannot be sent away."""
_TEXT, _INT32, _BOOL = DTYPES["string"], DTYPES["int32"], DTYPES["bool"]


@dataclass(frozen=True)
class Sent:
    """A variable that is sent away.

    Attributes:
        handle: the input of the graph that stands for it.
        nbytes: of its value.
        value: what it holds while the step works with it.
        readers: what works with its value. They cannot run again later: what they read would keep its memory when the variable is gone.
        written: what writes the file.
        gone: what leaves the name of the file in the variable.
    """

    handle: Value
    nbytes: int
    value: Value
    readers: tuple[Node, ...]
    written: Node
    gone: Node


def may_be_sent(graph: Graph, handle: Value) -> bool:
    """Whether all that works with a variable is known, and what it reads stays inside the step.

    What calls functions with the variable, and what hands its value on to the caller, keeps it.
    """
    variable = graph.variables[handle]
    if variable.dtype.itemsize not in SHAPE_OF_NAME or variable.shape is None or None in variable.shape or not handle.consumers:
        return False
    for node in handle.consumers:
        if called_functions(node) or not (is_read(node) or written_resources(node)):
            return False
    return not any(value in graph.outputs for node in handle.consumers if is_read(node) for value in _views(node.outputs[0]))


def send_away(graph: Graph, handles: Sequence[Value]) -> list[Sent]:
    """Let variables be in files between the runs of a step; the folder is named when the graph is written (`FileTexts`)."""
    branches: dict[tuple[DType, Shape], tuple[str, str]] = {}
    sent = [_send(graph, FileTexts(graph, ""), handle, branches) for handle in handles]
    graph.control_outputs = [*graph.control_outputs, *(one.gone for one in sent)]
    return sent


def _send(graph: Graph, texts: FileTexts, handle: Value, branches: dict[tuple[DType, Shape], tuple[str, str]]) -> Sent:
    """Send one variable away; those of one type share the functions of their branches."""
    variable = graph.variables[handle]
    dtype, shape = variable.dtype, variable.shape
    shape_of_name = SHAPE_OF_NAME[dtype.itemsize or 0]
    name = f"{OFFLOADED}/{handle.producer.name}"
    used = handle.consumers
    readers = [c for n in used if is_read(n) for v in _views(n.outputs[0]) for c in v.consumers]

    # TensorFlow must not think that it knows the shape: it would settle the question that the branch asks.
    unknown = (ShapeAttribute(None),)
    before = add(graph, "ReadVariableOp", f"{name}/before", [handle], (dtype, shape), dtype=dtype, _output_shapes=unknown).outputs[0]
    size = add(graph, "Size", f"{name}/size", [before], (_INT32, ()), T=dtype, out_type=_INT32).outputs[0]
    of_name = add_constant(graph, f"{name}/size_of_name", np.array(math.prod(shape_of_name), np.int32))
    is_away = add(
        graph, "Equal", f"{name}/is_away", [size, of_name], (DTYPES["bool"], ()), T=_INT32, incompatible_shape_error=True
    ).outputs[0]
    inputs = [before, texts.folder, texts.over]
    if (dtype, shape) not in branches:
        branches[dtype, shape] = _read_branch(graph, inputs), _branch(graph, inputs, "kept")
    then_branch, else_branch = branches[dtype, shape]
    value = graph.add_node(
        "If",
        graph.unique_name(f"{name}/value"),
        inputs=[is_away, *inputs],
        attrs={
            "Tcond": _BOOL,
            "Tin": (dtype, _TEXT, _TEXT),
            "Tout": (dtype,),
            "then_branch": FunctionReference(then_branch),
            "else_branch": FunctionReference(else_branch),
            "output_shapes": (ShapeAttribute(shape),),
        },
        output_types=[(dtype, shape)],
    ).outputs[0]
    attrs = {"dtype": dtype, "validate_shape": False}
    back = graph.add_node("AssignVariableOp", graph.unique_name(f"{name}/back"), inputs=[handle, value], attrs=attrs)
    for node in used:
        graph.add_control_input(node, back)

    last = dict.fromkeys([*used, *readers])
    after = add(graph, "ReadVariableOp", f"{name}/after", [handle], (dtype, shape), dtype=dtype)
    for node in last:
        graph.add_control_input(after, node)
    drawn, digits = drawn_digits(texts, f"{name}/run")
    written = texts.save(f"{name}/write", texts.file(name, digits, STATE_FILE), after.outputs[0])
    bits = add(graph, "Bitcast", f"{name}/name", [drawn], (dtype, shape_of_name), T=_INT32, type=dtype).outputs[0]
    gone = graph.add_node(
        "AssignVariableOp", graph.unique_name(f"{name}/{GONE}"), inputs=[handle, bits], attrs=attrs, control_inputs=[written]
    )
    return Sent(handle, variable.nbytes or 0, value, tuple(readers), written, gone)


def _branch(graph: Graph, inputs: Sequence[Value], name: str) -> str:
    """A function that returns its first argument."""
    name = unique_function_name(graph, f"{OFFLOADED}_{name}")
    body = Graph(name, functions=graph.functions, versions=graph.versions)
    body.inputs = [add(body, "_Arg", f"argument_{k}", [], (v.dtype, v.shape), T=v.dtype, index=k).outputs[0] for k, v in enumerate(inputs)]
    body.outputs = body.inputs[:1]
    graph.functions[name] = Function(name, body)
    return name


def _read_branch(graph: Graph, inputs: Sequence[Value]) -> str:
    """A function that reads the file that its first argument names, and gives it up."""
    name = _branch(graph, inputs, "read")
    body = graph.functions[name].body
    bits, folder, over = body.inputs
    texts = FileTexts(body, folder, over)
    numbers = add(body, "Bitcast", "numbers", [bits], (_INT32, DRAWN_SHAPE), T=bits.dtype, type=_INT32).outputs[0]
    file = texts.file("read", texts.digits("run", numbers), STATE_FILE)
    read = texts.restore("read", file, bits.dtype, bits.shape)
    body.outputs = read.outputs
    body.control_outputs = [texts.give_up("over", file, [read])]
    return name


def _views(value: Value) -> list[Value]:
    """A value and all that share its storage."""
    found = [value]
    for one in found:
        found += [v for node in one.consumers if is_view(node) for v in node.outputs]
    return found
