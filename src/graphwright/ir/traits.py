"""Behavior of op types: the one place that knows lists of names. An unknown op counts as having effects.

Terms
-----
view
    The output shares the storage of input 0; nothing is copied.
pure
    The outputs depend on nothing but the inputs, and nothing else changes: executing it
    twice gives the same result and is not seen by anyone.
in place
    The kernel may write its output into the storage of an input that nobody else holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphwright.ir.attributes import FunctionReference

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.graph import Graph, Node, Value

_FEW_BYTES = 128
_VIEWS = frozenset(
    "Identity StopGradient PreventGradient Reshape Squeeze ExpandDims ReadVariableOp PlaceholderWithDefault EnsureShape Bitcast "
    "IdentityN".split()
)
_VIEWS_OF_ALL = frozenset("Sum Mean Max Min Prod Tile Cast Slice StridedSlice Pad PadV2 MirrorPad BroadcastTo ConcatV2".split())
"""Their kernels hand on input 0 where there is nothing to do: no axis of more than one element to reduce, a slice of everything."""

_UNARY_IN_PLACE = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor Inv LeakyRelu Lgamma Log Log1p "
    "LogSoftmax LogicalNot Neg Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt "
    "Square Tan Tanh ZerosLike BiasAdd BiasAddV1 ClipByValue".split()
)
_BINARY_IN_PLACE = frozenset(
    "Add AddV2 Atan2 BitwiseAnd BitwiseOr BitwiseXor Div DivNoNan EluGrad FloorDiv FloorMod InvGrad LeakyReluGrad LogicalAnd "
    "LogicalOr Maximum Minimum Mod Mul MulNoNan Pow RealDiv ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad "
    "SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference Sub TanhGrad TruncateDiv Xdivy Xlogy".split()
)

GOES_BY_ELEMENTS = _UNARY_IN_PLACE | _BINARY_IN_PLACE | {"Select", "SelectV2", "AddN"}
"""Op types that compute element by element, inputs with one element in a dimension repeated."""
_WRITE_OPS_PREFIX = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
READS_OF_VALUES = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
"""What gives the value of a variable with a handle, or rows of it."""
READS_OF_VARIABLES = READS_OF_VALUES | {"VarIsInitializedOp", "VariableShape"}
"""Op types that take a handle and change nothing, though TensorFlow's registry calls them stateful."""
LOOPS = frozenset({"While", "StatelessWhile"})
"""Loops of TF2, with functions for condition and body."""
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
"""Branches of TF2, with a function each."""
CALL_TYPES = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Op types that call the function named in their attribute `f`."""
REFERENCE_VARIABLES = frozenset({"VariableV2", "Variable"})
"""Variables of TF1 without a handle: their output is the value itself, by reference."""
VARIABLES = REFERENCE_VARIABLES | {"VarHandleOp"}
"""Op types that make a variable, which lives as long as the session."""
RECOMPUTED_FROM = "_graphwright_recomputed_from"
"""The attribute of a recomputed node that names the one that it repeats, as bytes."""
PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
"""What has no value unless a caller feeds one."""
INPUTS = PLACEHOLDERS | {"_Arg"}
"""What stands for a value from outside: a placeholder, or the argument of a function."""
MAY_BE_FED = INPUTS | {"PlaceholderWithDefault"}
"""What a caller may give a value: inputs, and what has a value of its own until it is fed."""
STANDS_FOR_SOMETHING = INPUTS | {"Const", "_Retval", "NoOp"}
"""What computes nothing: inputs, constants, results, and points in the order."""
IDENTITIES = frozenset({"Identity", "IdentityN"})
"""What hands on each of its inputs, unchanged, at the output of the same number."""
ADDITIONS = frozenset({"Add", "AddV2"})
"""The sum of two inputs."""
ASKS_FOR_SHAPE = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape"})
"""What tells the shape of an input, or a number of it."""
ENTERS, EXITS = frozenset({"Enter", "RefEnter"}), frozenset({"Exit", "RefExit"})
"""How a value gets into the frame of a loop of TF1, and out of it."""
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
"""How a value gets from one round of a loop of TF1 into the next."""
MERGES = frozenset({"Merge", "RefMerge"})
"""What hands on the one of its inputs that is not dead."""
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
"""What hands its input on at one output, and leaves the others dead; `_SwitchN` is of the executor, for a `Case`."""
CONTROL_FLOW_OF_TF1 = ENTERS | EXITS | NEXT_ITERATIONS | MERGES | SWITCHES | {"LoopCond", "ControlTrigger"}
"""Loops and branches made of single nodes, with dead tensors and frames; the executor knows no other ones."""
_ONLY_COMPUTES = (_VIEWS | _VIEWS_OF_ALL | _UNARY_IN_PLACE | _BINARY_IN_PLACE) - {"ReadVariableOp"} | frozenset(
    "Const MatMul BatchMatMul BatchMatMulV2 Conv2D MaxPool AvgPool Shape Size Rank Fill Pack Unpack Transpose AddN Equal NotEqual Less "
    "LessEqual Greater GreaterEqual Select SelectV2 GatherV2 ArgMax Range".split()
)
"""Known to be pure where nobody asks TensorFlow's registry."""
WRITES_INTO_INPUT = frozenset({"InplaceAdd", "InplaceSub", "InplaceUpdate", "_ParallelConcatUpdate"})
"""Op types that write into the tensor that they are given, whoever else reads it; TensorFlow's registry calls them stateless."""
_STATEFUL_OPS = WRITES_INTO_INPUT | frozenset(
    "Assert Print PrintV2 RandomUniform RandomStandardNormal RandomUniformInt TruncatedNormal RandomShuffle Multinomial RandomGamma "
    "RandomPoisson RandomPoissonV2 ParameterizedTruncatedNormal StatefulStandardNormalV2 StatefulUniform StatefulUniformInt "
    "StatefulUniformFullInt StatefulTruncatedNormal StatefulRandomBinomial NonDeterministicInts RngSkip RngReadAndSkip PyFunc "
    "EagerPyFunc PyFuncStateless FakeParam CollectiveReduceV2 NcclAllReduce "
    "ReadFile MatchingFiles Batch Unbatch UnbatchGrad CustomAggregator InfeedEnqueuePrelinearizedBuffer "
    "TensorArrayWriteV2 TensorArrayReadV2 TensorArrayGatherV2 TensorArrayScatterV2 TensorArrayConcatV2 TensorArraySplitV2 "
    "TensorArraySizeV2 TensorArrayCloseV2".split()  # from ReadFile on, TensorFlow's registry calls them stateless
)
_COLLECTIVES = ("Collective", "NcclAllReduce", "NcclBroadcast", "NcclReduce", "CrossReplicaSum", "AllToAll")
_NO_EXCHANGE = frozenset({"CollectiveAssignGroupV2", "CollectiveInitializeCommunicator"})


def is_collective(node: Node) -> bool:
    """Whether the node waits for its like on other devices: an all-reduce, a gather, a broadcast."""
    return node.op_type.startswith(_COLLECTIVES) and node.op_type not in _NO_EXCHANGE


def is_few_integers(value: Value) -> bool:
    """Whether it may well be a shape, or a size in one."""
    return value.dtype.name in ("int32", "int64") and value.nbytes is not None and value.nbytes <= _FEW_BYTES


def is_view(node: Node) -> bool:
    """Whether the outputs share the storage of the inputs: output k of input k for IdentityN, of input 0 else."""
    if node.op_type in _VIEWS:
        return True
    if node.op_type not in _VIEWS_OF_ALL or not node.inputs:
        return False
    before, after = node.inputs[0], node.outputs[0]
    if after in node.graph.at_most:  # whether there is nothing to do is known when it runs
        return False
    return before.dtype == after.dtype and before.nbytes is not None and before.nbytes == after.nbytes and _keeps_order(node)


def _keeps_order(node: Node) -> bool:
    """Whether an op with as many outputs as inputs changes nothing: a slice with negative strides would reverse."""
    if node.op_type == "StridedSlice":
        return node.inputs[0].shape == node.outputs[0].shape and not node.attrs.get("new_axis_mask")
    return True


def resource_of(value: Value) -> Value:
    """The resource behind a resource value, through Identity and loops that hand it on."""
    while True:
        node = value.producer
        if node.op_type in ("Identity", "IdentityN", "While", "StatelessWhile") and value.index < len(node.inputs):
            value = node.inputs[value.index]
            continue
        return value


_UPDATES = ("Apply", "ResourceApply", "SparseApply", "ResourceSparseApply")


def updated_weight(node: Node) -> Value | None:
    """The variable that an operation of an optimizer of TF1 (`Apply*`, `ResourceApply*`) trains: its first input.

    The other variables that it writes are slots. None for other operations.
    """
    return resource_of(node.inputs[0]) if node.op_type.startswith(_UPDATES) and node.inputs else None


def variable_key(value: Value) -> str:
    """What tells the variable of a handle, a reference or an input apart from others.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> g = Graph()
    >>> handles = [g.add_node("VarHandleOp", n, attrs={"shared_name": b"w"}, output_types=[(DTYPES["resource"], ())]) for n in "ab"]
    >>> {variable_key(node.outputs[0]) for node in handles}
    {'VarHandleOp::w'}
    """
    node = value.producer
    if node.op_type not in VARIABLES:
        return value.name
    container, shared = node.attrs.get("container"), node.attrs.get("shared_name")
    where = container.decode("utf-8", "replace") if isinstance(container, bytes) else ""
    name = shared.decode("utf-8", "replace") if isinstance(shared, bytes) and shared else node.name
    return f"{'VarHandleOp' if node.op_type == 'VarHandleOp' else 'Variable'}:{where}:{name}"


def in_place_pairs(node: Node) -> tuple[tuple[int, int], ...]:
    """Pairs (input, output) that the CPU kernel may share, in the order in which it tries them.

    Sizes and dtypes must also agree, and nobody else may hold the input.
    """
    if node.op_type in _UNARY_IN_PLACE:
        return ((0, 0),)
    if node.op_type in _BINARY_IN_PLACE:
        return ((0, 0), (1, 0))
    match node.op_type:
        case "SelectV2" | "Select":
            return ((1, 0), (2, 0))
        case "CollectiveReduce" | "CollectiveReduceV2" | "CollectiveReduceV3":
            return ((0, 0),)
        case "AddN":
            return tuple((k, 0) for k in range(len(node.inputs)))
        case "SoftmaxCrossEntropyWithLogits" | "SparseSoftmaxCrossEntropyWithLogits":
            return ((0, 1),)
        case op_type if op_type.startswith("FusedBatchNorm"):
            return ((0, 0),)
        case _:
            return ()


def writes_resource(node: Node) -> Value | None:
    """The resource that the node overwrites, or None."""
    if node.op_type.startswith(_WRITE_OPS_PREFIX):
        return node.inputs[0] if node.inputs and node.inputs[0].dtype.name == "resource" else None
    return None


def written_resources(node: Node) -> tuple[Value, ...]:
    """All resources among the inputs that the node overwrites (optimizer kernels write several)."""
    if writes_resource(node) is None:
        return ()
    return tuple(v for v in node.inputs if v.dtype.name == "resource")


def is_constant(node: Node) -> bool:
    """Whether its value stands in the graph."""
    return node.op_type == "Const"


def is_read(node: Node) -> bool:
    """Whether it gives the whole value of a variable with a handle."""
    return node.op_type == "ReadVariableOp"


def input_behind(value: Value) -> Value:
    """The input that a view hands on as this output: that of the same number for `IdentityN`, the first one else."""
    node = value.producer
    return node.inputs[value.index if node.op_type == "IdentityN" else 0]


def is_control_flow(node: Node) -> bool:
    """Whether it is a While, If or Case node."""
    return node.op_type in LOOPS or node.op_type in BRANCHES


def is_call(node: Node, graph: Graph) -> bool:
    """Whether the node calls a function of the library and can be inlined."""
    return node.op_type in CALL_TYPES or node.op_type in graph.functions


def callee(node: Node) -> str:
    """The name of the function that a call calls: its attribute `f`, or the op type itself."""
    reference = node.attrs.get("f") if node.op_type in CALL_TYPES else None
    return reference.name if isinstance(reference, FunctionReference) else node.op_type


def result_functions(node: Node) -> tuple[str, ...]:
    """The names of the functions of whose results the node's outputs are made: what it calls, its branches, or the body of a loop.

    An op type that is not in the library names no function.
    """
    if not is_control_flow(node):
        return (callee(node),)
    body = node.attrs.get("body")
    return (body.name,) if isinstance(body, FunctionReference) else called_functions(node)


def is_back_edge(value: Value, reader: Node) -> bool:
    """Whether the edge closes a loop of TF1: what `NextIteration` hands to `Merge` for the next round."""
    return closes_loop(value.producer.op_type, reader.op_type)


def closes_loop(op_type: str, reader_op_type: str) -> bool:
    """Whether an edge between nodes of these types closes a loop of TF1."""
    return op_type in NEXT_ITERATIONS and reader_op_type in MERGES


def is_control_flow_of_tf1(node: Node) -> bool:
    """Whether the node belongs to the control flow of TF1, with dead tensors and frames."""
    return node.op_type in CONTROL_FLOW_OF_TF1


def reads_resource(node: Node) -> bool:
    """Whether an input is a handle: a variable, a table, an iterator."""
    return any(v.dtype.name == "resource" for v in node.inputs)


def has_known_effects(node: Node) -> bool:
    """Whether the op type is known to do more than make its outputs. An unknown op, or a call, may have effects all the same."""
    return node.op_type in _STATEFUL_OPS or writes_resource(node) is not None


def draws_by_counter(node: Node) -> bool:
    """Whether it draws random numbers from a hidden counter of its own, which TensorFlow seeds by two attributes.

    The fractional pools do, though TensorFlow's registry calls them stateless.
    """
    return "seed" in node.attrs and "seed2" in node.attrs


def called_functions(node: Node) -> tuple[str, ...]:
    """Names of the library functions in the node's attributes."""
    names: list[str] = []
    for attribute in node.attrs.values():
        items = attribute if isinstance(attribute, tuple) else (attribute,)
        names += [item.name for item in items if isinstance(item, FunctionReference)]
    return tuple(names)


class Purity:
    """Answers whether nodes are pure. `stateful(op_type)` is the registry's answer, None for an unknown op.

    A control-flow node is pure when its functions are; reading a variable counts as
    pure, because the planner keeps reads on their side of the writes.
    """

    def __init__(self, graph: Graph, stateful: dict[str, bool]) -> None:
        self._graph = graph
        self._stateful = stateful
        self._functions: dict[str, bool] = {}
        self._changing: dict[str, bool] = {}

    def is_pure(self, node: Node) -> bool:
        """Whether executing the node twice cannot be told from executing it once."""
        if node.op_type in READS_OF_VARIABLES:
            return True
        names = called_functions(node)
        if is_control_flow(node) or node.op_type in CALL_TYPES:
            return bool(names) and all(self._is_pure_function(name) for name in names)
        if node.op_type in _STATEFUL_OPS or names or draws_by_counter(node) or reads_resource(node):
            return False
        return not self._stateful.get(node.op_type, node.op_type not in _ONLY_COMPUTES)

    def changes_something(self, node: Node) -> bool:
        """Whether running it is seen by others: not so for what is pure, a `NoOp`, or a call of functions none of whose effects is."""
        if node.op_type in ("NoOp", "_Arg") or self.is_pure(node):
            return False
        names = [name for name in (*called_functions(node), node.op_type) if name in self._graph.functions]
        return any(self._function_changes_something(name) for name in names) if names else True

    def _function_changes_something(self, name: str) -> bool:
        if name not in self._changing:
            body = self._graph.functions[name].body
            self._changing[name] = True  # a function that calls itself
            # TensorFlow lists what has effects; what lists nothing is old, or has none.
            listed = body.control_outputs or [n for n in body.nodes if has_known_effects(n) or called_functions(n)]
            self._changing[name] = any(self.changes_something(n) for n in listed)
        return self._changing[name]

    def _is_pure_function(self, name: str) -> bool:
        if name not in self._functions:
            function = self._graph.functions.get(name)
            self._functions[name] = False  # a function that calls itself is not pure
            if function is not None:
                arguments = {v.producer for v in function.body.inputs}
                self._functions[name] = all(self.is_pure(n) for n in function.body.nodes if n not in arguments)
        return self._functions[name]
