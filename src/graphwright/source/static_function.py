"""A graph from a file as a `ConcreteFunction` that is inspected and never called: nothing of the file runs, and its variables have no
values.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from graphwright.errors import ArgumentError, FileFormatError, UnsupportedError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.dtypes import dtype_from_number
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.signature import Signature, node_of
from graphwright.ir.traits.control_flow import CALL_TYPES, callee
from graphwright.ir.traits.values import COMPUTES_NOTHING, IDENTITIES, MAY_BE_FED, PLACEHOLDERS, forwards_several, is_constant, origin
from graphwright.ir.traits.variables import REFERENCE_VARIABLES, updated_weight, with_handle
from graphwright.ir.walk import backward_reachable, forward_reachable, order_of
from graphwright.source import private_tensorflow as private
from graphwright.source.attributes import constant_array, tensor_to_attribute
from graphwright.source.graph_def import to_graph_def
from graphwright.source.never_run import forbid_to_run
from graphwright.source.op_types import takes_reference
from graphwright.source.private_tensorflow import op_definition
from graphwright.source.rebuild import rebuild_concrete_function
from graphwright.source.stored_variables import StoredVariable, stored_variables
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import write_placeholder

Fetches = tuple[list[Value], list[Node]]
_LARGE_BYTES = 2**20
_FIELDS = {"float16": "half_val", "bfloat16": "half_val", "float32": "float_val", "float64": "double_val"}
_FIRST_NUMBER = 0x4000  # neither zero nor one, which Grappler would simplify, as bits and as a number


def static_function(graph: Graph, key: str = "", fetches: Fetches | None = None, *, fed: Container[str] = (), runs: bool = False) -> Any:
    """Make a function of a signature (`key`), or from placeholders to fetches; variables of TF1 without handles get handles. Where it is
    not to be called (`runs`), large constants of the graph lose their values.

    Args:
        fetches: the values to return and the nodes to run; by default all values that nothing reads, unless the graph trains.
        fed: names of nodes with a default value that are arguments too.
    """
    if not runs:
        _forget_large_values(graph)
    variables = _Variables(graph, runs)
    if not key:
        outputs, nodes = fetches or (_ends(graph), [])
        needed = backward_reachable([*(value.producer for value in outputs), *nodes])
        inputs = [n.outputs[0] for n in graph if n in needed and _is_input(n, fed)]
        return variables.function(graph, inputs, outputs, variables.captured(graph, needed), None, nodes)
    signature = graph.signatures[key]
    outputs = [signature.outputs[key] for key in sorted(signature.outputs)]
    call = _only_call(graph, signature)
    if call is None:
        inputs = list(signature.inputs.values())
        captured = variables.captured(graph, backward_reachable(value.producer for value in outputs))
        return variables.function(graph, inputs, outputs, captured, signature)
    # A signature of TF2 gives the function that it calls, as in TensorFlow: its names come from the model.
    body = graph.functions[callee(call)].body
    name = graph.name
    fed = set(signature.inputs.values())
    inputs = [inner for inner, outer in zip(body.inputs, call.inputs, strict=True) if outer in fed]
    captured = {inner: variables.behind(outer) for inner, outer in zip(body.inputs, call.inputs, strict=True) if outer not in fed}
    place = {value: k for k, value in enumerate(call.outputs)}
    results = [body.outputs[place[origin(value)]] for value in outputs]
    return variables.function(body, inputs, results, captured, signature, name=name)


def check_has_values(function: Any, name: str) -> None:
    if function.graph.variables:
        raise UnsupportedError(
            "a graph with variables has no values to run with",
            where=f"graph {name!r}, variable {function.graph.variables[0].path!r}",
            cause="their values are in a checkpoint or a session, which nothing names",
            remedy="give the SavedModel that it came from, or freeze its variables first: `graphwright edit GRAPH OUT freeze "
            "--checkpoint PATH`",
        )


def _ends(graph: Graph) -> list[Value]:
    trains = next((node for node in graph if updated_weight(node) is not None), None)
    if trains is not None:
        ends = [n.name for n in graph if n.control_inputs and not n.control_consumers and not any(v.use_count for v in n.outputs)]
        raise ArgumentError(
            "the graph contains a training op, and its fetches are unknown",
            argument="outputs",
            where=f"node {trains.name!r} ({trains.op_type})",
            cause="a step runs the operations that its fetches need, not those that initialize, save and restore",
            remedy=f"give outputs=[...] (--outputs), such as the train op and the loss; nothing reads {', '.join(ends[-5:])}",
        )
    return _unread(graph)


def _is_input(node: Node, fed: Container[str]) -> bool:
    """Return whether its value comes from outside. A default of unknown size does not count."""
    return node.op_type in PLACEHOLDERS or (node.op_type in MAY_BE_FED and (node.name in fed or node.outputs[0].nbytes is None))


def _unread(graph: Graph) -> list[Value]:
    ends = [n for n in graph if not any(v.use_count for v in n.outputs) and n.op_type not in COMPUTES_NOTHING]
    return [value for node in ends if not node.control_consumers for value in node.outputs]


def _placeholders(graph: Graph, outputs: list[Value]) -> list[Value]:
    needed = backward_reachable(value.producer for value in outputs)
    return [node.outputs[0] for node in graph if node.op_type in PLACEHOLDERS and node in needed]


def _forget_large_values(graph: Graph) -> None:
    """Replace the elements of each large constant by one number, and drop large attributes that no kernel reads, since inspection copies
    the graph many times. No shape depends on them. Different constants get different numbers, or Grappler would merge them.
    """
    numbers: dict[int, int] = {}
    for body in bodies(graph):
        for node in body.nodes:
            for key, held in [*node.attrs.items()]:
                size = len(held.data) if isinstance(held, SerializedAttribute) else len(held) if isinstance(held, bytes) else 0
                if size > _LARGE_BYTES and key.startswith("_"):
                    body.set_attr(node, key, None)
                elif size > _LARGE_BYTES and key == "value" and is_constant(node) and isinstance(held, SerializedAttribute):
                    value: Any = import_tensorflow().compat.v1.AttrValue.FromString(held.data)
                    field = _FIELDS.get(dtype_from_number(value.tensor.dtype).name)
                    if field is not None:
                        number = _FIRST_NUMBER + numbers.setdefault(hash(held.data), len(numbers))
                        one = type(value.tensor)(dtype=value.tensor.dtype, tensor_shape=value.tensor.tensor_shape, **{field: [number]})
                        body.set_attr(node, "value", tensor_to_attribute(one))


def default_signature(graph: Graph, where: str) -> str:
    keys = [key for key, signature in graph.signatures.items() if signature.outputs and not key.startswith("__")]
    if "serving_default" not in keys and len(keys) != 1:
        raise FileFormatError(
            f"the SavedModel has {len(keys)} signatures and no default one: {', '.join(sorted(keys))}",
            where=where,
            remedy="load it with tf.saved_model.load and pass the signature that you mean",
        )
    return "serving_default" if "serving_default" in keys else keys[0]


def add_default_signature(graph: Graph) -> str:
    """Restore the default signature of a graph that was frozen with others, from the names of its placeholders; return its key, or ""
    where there is none.
    """
    ends = _unread(graph)
    inputs = [v for v in _placeholders(graph, ends) if v.producer.name.startswith("serving_default_")]
    served = forward_reachable(v.producer for v in inputs)
    outputs = [value for value in ends if value.producer in served]
    if len(outputs) == len(ends) or not outputs or _placeholders(graph, outputs) != inputs:
        return ""
    named = [{v.producer.name if v.index == 0 else v.name: v for v in values} for values in (inputs, outputs)]
    graph.signatures["serving_default"] = Signature(named[0], named[1], "tensorflow/serving/predict")
    return "serving_default"


def _only_call(graph: Graph, signature: Signature) -> Node | None:
    makers = {origin(value).producer for value in signature.outputs.values()}
    call = next(iter(makers)) if len(makers) == 1 else None
    if call is None or call.op_type not in CALL_TYPES or callee(call) not in graph.functions:
        return None
    fed = set(signature.inputs.values())
    known = all(v in fed or is_constant(v.producer) or (v.dtype.name == "resource" and not v.producer.inputs) for v in call.inputs)
    return call if known else None


class _Variables:
    def __init__(self, graph: Graph, runs: bool) -> None:
        self._runs = runs
        stored, self._keys = stored_variables(graph)
        self._stored = {variable.key: variable for variable in stored}
        listed = graph.collections.get("trainable_variables")
        updated = {self._keys.get(weight) for weight in map(updated_weight, graph.nodes) if weight is not None}
        updated_nodes = {v.producer for v, key in self._keys.items() if key in updated} or None  # without an optimizer, all may be trained
        self._trained = updated_nodes if listed is None else {node_of(held) for held in listed.references()}
        self._made: dict[str, Any] = {}

    def behind(self, value: Value) -> Any:
        if value in self._keys:
            return self._variable(value).handle
        tf = import_tensorflow()
        if value.dtype.name == "resource":  # a table or an iterator: any handle that is not a variable's will do
            return tf.raw_ops.AnonymousMutableHashTable(key_dtype=tf.int64, value_dtype=tf.int64)
        return tf.constant(constant_array(value))

    def captured(self, graph: Graph, needed: Container[Node]) -> dict[Value, Any]:
        return {v: self.behind(v) for v in self._keys if v.producer in needed and graph.owns(v.producer)}

    def _variable(self, value: Value) -> Any:
        key = self._keys[value]
        if key not in self._made:
            variable: StoredVariable = self._stored[key]
            is_trained = self._trained is None or value.producer in self._trained
            trainable = is_trained if variable.trainable is None else variable.trainable
            self._made[key] = private.variable_without_value(variable.name, variable.dtype, variable.shape, trainable)
        return self._made[key]

    def function(
        self,
        graph: Graph,
        inputs: list[Value],
        outputs: list[Value],
        captured: Mapping[Value, Any],
        signature: Signature | None,
        nodes: Sequence[Node] = (),
        name: str = "",
    ) -> Any:
        tf = import_tensorflow()
        needed = {*backward_reachable([*(v.producer for v in outputs), *nodes]), *(v.producer for v in (*inputs, *captured))}
        graph_def = to_graph_def(graph, keep=lambda node: node in needed)
        _write_by_handle(graph, graph_def, outputs)
        by_name = {value.producer.name: value for value in (*inputs, *captured)}
        graph_def.node.extend(list(_as_placeholders(graph_def, by_name)))
        called = dict(zip((v.producer.name for v in inputs), signature.inputs if signature is not None else (), strict=False))
        for node in graph_def.node:
            if node.name in called and (name or node.name.endswith(called[node.name])):  # in TF1 graphs the placeholders have names
                node.attr["_user_specified_name"].s = called[node.name].encode()
        keys = None if signature is None else {key: tf.TensorSpec(None) for key in signature.outputs}
        function = rebuild_concrete_function(
            graph_def if self._runs else forbid_to_run(graph_def),
            inputs=[v.name for v in inputs],
            captures=[(external, _handle_name(value)) for value, external in captured.items()],
            outputs=[v.name for v in outputs],
            control_outputs=[node.name for node in nodes],
            structured_outputs=keys,
            name=name or graph.name or "graph",
        )
        function.graph.variables = list(self._made.values())
        function.graphwright_keeps_alive = self._made  # the graph holds its variables weakly
        return function


def _write_by_handle(graph: Graph, graph_def: Any, outputs: Container[Value]) -> None:
    """Convert writes of variables by reference to writes by handle, and their forwarded values to reads at the same place in the order."""
    written = {node.name: node for node in graph_def.node}
    handles = {v: _handle_name(v).removesuffix(":0") for n in graph if n.op_type in REFERENCE_VARIABLES for v in n.outputs}
    for node in order_of(graph.nodes) if handles else ():
        new = written.get(node.name)
        reads = node.op_type in IDENTITIES and not forwards_several(node)
        if new is None or not node.inputs or node.inputs[0] not in handles or not (reads or takes_reference(node.op_type)):
            continue
        takes = [argument.is_ref for argument in op_definition(node.op_type).input_arg]
        after = [f"^{v.producer.name}" for v in node.inputs if v in handles and v.producer.op_type not in REFERENCE_VARIABLES]
        data = [
            handles.get(v, text) if k == 0 or takes[k] else text for k, (v, text) in enumerate(zip(node.inputs, new.input, strict=False))
        ]
        new.input[:] = [*data, *new.input[len(data) :], *after]
        dtype = new.attr["T"]
        if reads:
            _become(new, "ReadVariableOp", dtype)
            # A read by reference shares the variable's memory: a reader sees the writes that it waits for, so it gets a read behind them.
            for use in (use for use in node.outputs[0].uses if use.node.control_inputs and use.node.name in written):
                late = _copied(graph_def, new, f"{node.name}/graphwright_read_by/{use.node.name}_{use.index}")
                late.input.extend(f"^{before.name}" for before in use.node.control_inputs)
                written[use.node.name].input[use.index] = late.name
            continue
        handles[node.outputs[0]] = new.input[0]
        if node.outputs[0] in outputs or any(not takes_reference(use.node.op_type) for use in node.outputs[0].uses):
            write = _copied(graph_def, new, f"{node.name}/graphwright_write")
            new.input[:] = [new.input[0], f"^{write.name}"]
            _become(new, "ReadVariableOp", dtype)
            new = write
        if not _become(new, with_handle(node.op_type), dtype):
            raise UnsupportedError(
                f"{node.op_type} takes a variable of TF1 by reference, and there is no such operation for handles",
                where=f"node {node.name!r}",
                remedy="build the graph with resource variables: tf.compat.v1.enable_resource_variables()",
            )


def _copied(graph_def: Any, node: Any, name: str) -> Any:
    copy = graph_def.node.add()
    copy.CopyFrom(node)
    copy.name = name
    return copy


def _become(node: Any, op_type: str, dtype: Any) -> bool:
    """Change a node to a type that takes a handle, with its attributes; return whether the type is registered."""
    definition = op_definition(op_type)
    known = {attr.name for attr in definition.attr} if definition is not None else set[str]()
    for key in [key for key in node.attr if key not in known and (not key.startswith("_") or key == "_output_shapes")]:
        del node.attr[key]
    if "dtype" in known:
        node.attr["dtype"].CopyFrom(dtype)
    node.op = op_type
    return definition is not None


def _handle_name(value: Value) -> str:
    is_reference = value.producer.op_type in REFERENCE_VARIABLES
    return f"{value.producer.name}/graphwright_handle:0" if is_reference else value.name


def _as_placeholders(graph_def: Any, by_name: Mapping[str, Value]) -> Iterator[Any]:
    """Make placeholders of arguments and handles; of a variable by reference a read, whose handle is yielded."""
    for node in graph_def.node:
        value = by_name.get(node.name)
        if value is None:
            continue
        del node.input[:]
        if node.op not in REFERENCE_VARIABLES:
            write_placeholder(value, node.name, node)
            continue
        handle = type(node)(name=_handle_name(value).removesuffix(":0"), op="Placeholder")
        handle.attr["dtype"].type = import_tensorflow().resource.as_datatype_enum
        node.attr.clear()
        node.op, node.attr["dtype"].type = "ReadVariableOp", value.dtype.number
        node.input.append(handle.name)
        yield handle
