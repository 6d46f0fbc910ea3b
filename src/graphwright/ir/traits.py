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

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from graphwright.ir.attributes import FunctionReference

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.graph import Graph, Node, Value

_FEW_BYTES = 128

# What stands in the graph for something else

PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
"""What has no value unless a caller feeds one."""
ARGUMENTS, RESULTS = frozenset({"_Arg", "_DeviceArg"}), frozenset({"_Retval", "_DeviceRetval"})
"""What stands for the arguments and for the results in the body of a function."""
INPUTS = PLACEHOLDERS | ARGUMENTS
"""What stands for a value from outside: a placeholder, or the argument of a function."""
MAY_BE_FED = INPUTS | {"PlaceholderWithDefault"}
"""What a caller may give a value: inputs, and what has a value of its own until it is fed."""
GIVEN = INPUTS | {"Const"}
"""What has its value before anything runs."""
STANDS_FOR_SOMETHING = GIVEN | RESULTS | {"NoOp"}
"""What computes nothing: inputs, constants, results, and points in the order."""

# What hands on its input

IDENTITIES = frozenset({"Identity", "IdentityN"})
"""What hands on each of its inputs, unchanged, at the output of the same number."""
STOPS_GRADIENTS = frozenset({"StopGradient", "PreventGradient"})
"""What hands on its input and is seen by gradients alone."""
SAME_VALUE = IDENTITIES | STOPS_GRADIENTS | {"EnsureShape"}
"""What hands on its input unchanged."""
SAME_NUMBERS = SAME_VALUE | {"Reshape", "Squeeze", "ExpandDims"}
"""What hands on the numbers of its input, perhaps in another shape."""
SAME_BUT_FOR_TYPE = SAME_NUMBERS | {"Cast"}
"""What hands on the numbers of its input, perhaps in another shape or as another type."""
VIEWS = SAME_NUMBERS | {"ReadVariableOp", "PlaceholderWithDefault", "Bitcast"}
"""What always hands on the storage of its input."""
_VIEWS_OF_ALL = frozenset("Sum Mean Max Min Prod Tile Cast Slice StridedSlice Pad PadV2 MirrorPad BroadcastTo ConcatV2".split())
"""Their kernels hand on input 0 where there is nothing to do: no axis of more than one element to reduce, a slice of everything."""

# Control flow

LOOPS = frozenset({"While", "StatelessWhile"})
"""Loops of TF2, with functions for condition and body."""
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
"""Branches of TF2, with a function each."""
FUNCTION_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(LOOPS, ("cond", "body")),
    **dict.fromkeys(("If", "StatelessIf"), ("then_branch", "else_branch")),
    **dict.fromkeys(("Case", "StatelessCase"), ("branches",)),
}
"""Control flow of TF2 -> the attributes that name its functions."""
CALL_TYPES = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Op types that call the function named in their attribute `f`."""
ENTERS, EXITS = frozenset({"Enter", "RefEnter"}), frozenset({"Exit", "RefExit"})
"""How a value gets into the frame of a loop of TF1, and out of it."""
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
"""How a value gets from one round of a loop of TF1 into the next."""
MERGES = frozenset({"Merge", "RefMerge"})
"""What hands on the one of its inputs that is not dead."""
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
"""What hands its input on at one output, and leaves the others dead; `_SwitchN` is of the executor, for a `Case`."""
LOOP_CONDITIONS = frozenset({"LoopCond"})
"""What tells the switches of a loop of TF1 whether it goes on."""
HANDS_ON_IN_TF1 = ENTERS | EXITS | NEXT_ITERATIONS | MERGES | SWITCHES | LOOP_CONDITIONS
"""What hands on a value in loops and branches of TF1."""
CONTROL_FLOW_OF_TF1 = HANDS_ON_IN_TF1 | {"ControlTrigger"}
"""Loops and branches made of single nodes, with dead tensors and frames; the executor knows no other ones."""

# Variables

REFERENCE_VARIABLES = frozenset({"VariableV2", "Variable"})
"""Variables of TF1 without a handle: their output is the value itself, by reference."""
VARIABLES = REFERENCE_VARIABLES | {"VarHandleOp"}
"""Op types that make a variable, which lives as long as the session."""
MAKES_BY_REFERENCE = REFERENCE_VARIABLES | {"TemporaryVariable"}
"""What makes a buffer that others write by reference."""
READS_OF_ROWS = frozenset({"ResourceGather", "ResourceGatherNd"})
"""What gives rows of the value of a variable with a handle."""
READS_OF_VALUES = READS_OF_ROWS | {"ReadVariableOp"}
"""What gives the value of a variable with a handle, or rows of it."""
WHOLE_READS = IDENTITIES | {"ReadVariableOp"}
"""What gives the whole value of a variable: with a handle, or by reference."""
ASKS_ABOUT_VARIABLES = frozenset({"VarIsInitializedOp", "VariableShape"})
"""What takes the handle of a variable and does not give its value."""
READS_OF_VARIABLES = READS_OF_VALUES | ASKS_ABOUT_VARIABLES
"""Op types that take a handle and change nothing, though TensorFlow's registry calls them stateful."""
LEAVES_VALUES_ALONE = ASKS_ABOUT_VARIABLES | {"IsVariableInitialized", "DestroyResourceOp", "DestroyTemporaryVariable"}
"""What takes a variable and neither reads nor writes its value."""
READS_OF_TABLES = frozenset({"LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2"})
"""What looks into a table and leaves it as it is."""
ASSIGNS_WHOLE_VALUE = frozenset({"Assign", "AssignVariableOp"})
"""What gives a variable another value, whatever it held."""
SAVES = frozenset({"Save", "SaveSlices", "SaveV2"})
"""What writes variables into a checkpoint."""
DRAWS_FROM_VARIABLE = frozenset(
    "StatefulStandardNormal StatefulStandardNormalV2 StatefulUniform StatefulUniformInt StatefulUniformFullInt StatefulTruncatedNormal "
    "StatefulRandomBinomial RngSkip RngReadAndSkip".split()
)
"""What makes random numbers from a state that a variable holds, and moves that state on."""
_WRITES_HANDLES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
_UPDATES_REFERENCES = ("Apply", "SparseApply")
_OPTIMIZERS = (*_UPDATES_REFERENCES, "ResourceApply", "ResourceSparseApply")
_WRITES_REFERENCES = ("Assign", "Scatter", "StridedSliceAssign", "CountUpTo")
_ADDS_TO_VARIABLE = ("AssignAdd", "AssignSub", "ScatterAdd", "ScatterSub", "ScatterNdAdd", "ScatterNdSub")

# Arithmetic

ADDITIONS = frozenset({"Add", "AddV2"})
"""The sum of two inputs."""
SUMS_OF_MANY = frozenset({"AddN", "AccumulateNV2"})
"""The sum of any number of inputs of one shape."""
SUMS = ADDITIONS | SUMS_OF_MANY
"""The sum of all inputs."""
ADDS_BIAS = frozenset({"BiasAdd", "BiasAddV1"})
"""What adds a number per channel."""
SUMS_AND_DIFFERENCES = SUMS | {"Sub", "Neg"}
"""A sum of the inputs, some of them negative."""
SCALES = frozenset({"Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan"})
"""The first input times the second, or divided by it."""
CHOOSES_ELEMENTS = frozenset({"Select", "SelectV2", "Maximum", "Minimum"})
"""Each element is that of one of the inputs."""
COMBINES_TWO = ADDITIONS | frozenset("Sub Mul Div RealDiv Maximum Minimum SquaredDifference".split())
"""Cheap arithmetic on two inputs, element by element."""
CONVOLUTIONS = frozenset({"Conv2D", "Conv3D"})
"""Convolutions of images and volumes, of all channels or of groups of them."""
MATRIX_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
"""Products of two matrices, or of batches of them."""
BATCH_NORMS = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
"""Batch normalization by one kernel, as it stands in graphs that are not optimized yet."""
LOSSES_WITH_GRADIENT = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})
"""Output 0 is the loss, output 1 its gradient."""
LOOKUPS = frozenset({"Gather", "GatherV2"})
"""Rows of the first input, at the places that the second one names."""
ASKS_FOR_SHAPE = frozenset({"Shape", "ShapeN", "Size", "Rank", "VariableShape"})
"""What tells the shape of an input, or a number of it."""
NO_LARGER = frozenset("Sum Mean Max Min Prod All Any ArgMax ArgMin Slice StridedSlice Reshape BroadcastGradientArgs Shape".split())
"""What makes no more bytes than its largest input has."""
TAKES_OUT_OF_LIST = frozenset({"TensorListGetItem", "TensorListPopBack", "OptionalGetValue"})
"""What gives a tensor that a list, or an optional value, holds."""

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

# Effects

_ONLY_COMPUTES = (VIEWS | _VIEWS_OF_ALL | _UNARY_IN_PLACE | _BINARY_IN_PLACE) - {"ReadVariableOp"} | frozenset(
    "Const MatMul BatchMatMul BatchMatMulV2 Conv2D MaxPool AvgPool Shape Size Rank Fill Pack Unpack Transpose AddN Equal NotEqual Less "
    "LessEqual Greater GreaterEqual Select SelectV2 GatherV2 ArgMax Range".split()
)
"""Known to be pure where nobody asks TensorFlow's registry."""
CALLS_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""Op types that call Python functions of this process."""
WRITES_INTO_INPUT = frozenset({"InplaceAdd", "InplaceSub", "InplaceUpdate", "_ParallelConcatUpdate"})
"""Op types that write into the tensor that they are given, whoever else reads it; TensorFlow's registry calls them stateless."""
_STATEFUL_OPS = (
    WRITES_INTO_INPUT
    | CALLS_PYTHON
    | DRAWS_FROM_VARIABLE
    | frozenset(
        "Assert Print PrintV2 RandomUniform RandomStandardNormal RandomUniformInt TruncatedNormal RandomShuffle Multinomial RandomGamma "
        "RandomPoisson RandomPoissonV2 ParameterizedTruncatedNormal NonDeterministicInts FakeParam CollectiveReduceV2 NcclAllReduce "
        "ReadFile MatchingFiles Batch Unbatch UnbatchGrad CustomAggregator InfeedEnqueuePrelinearizedBuffer "
        "TensorArrayWriteV2 TensorArrayReadV2 TensorArrayGatherV2 TensorArrayScatterV2 TensorArrayConcatV2 TensorArraySplitV2 "
        "TensorArraySizeV2 TensorArrayCloseV2".split()  # from ReadFile on, TensorFlow's registry calls them stateless
    )
)
_TAKES_FROM_STREAM = ("IteratorGetNext", "QueueDequeue", "ReaderRead")
_COLLECTIVES = ("Collective", "NcclAllReduce", "NcclBroadcast", "NcclReduce", "CrossReplicaSum", "AllToAll")
_NO_EXCHANGE = frozenset({"CollectiveAssignGroupV2", "CollectiveInitializeCommunicator"})

RECOMPUTED_FROM = "_graphwright_recomputed_from"
"""The attribute of a recomputed node that names the one that it repeats, as bytes."""


def is_collective(node: Node) -> bool:
    """Whether the node waits for its like on other devices: an all-reduce, a gather, a broadcast."""
    return node.op_type.startswith(_COLLECTIVES) and node.op_type not in _NO_EXCHANGE


def is_few_integers(value: Value) -> bool:
    """Whether it may well be a shape, or a size in one."""
    return value.dtype.name in ("int32", "int64") and value.nbytes is not None and value.nbytes <= _FEW_BYTES


def is_view(node: Node) -> bool:
    """Whether the outputs share the storage of the inputs: output k of input k for IdentityN, of input 0 else."""
    if node.op_type in VIEWS:
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


def hands_on_several(node: Node) -> bool:
    """Whether it hands on several values at once, each at the output of the same number."""
    return node.op_type == "IdentityN"


def _index_behind(value: Value) -> int:
    """Which input is handed on as this output."""
    return value.index if hands_on_several(value.producer) or value.producer.op_type in LOOPS else 0


def input_behind(value: Value) -> Value:
    """The input that is handed on as this output: that of the same number for `IdentityN` and loops, the first one else."""
    return value.producer.inputs[_index_behind(value)]


def origin(value: Value, through: AbstractSet[str] = IDENTITIES) -> Value:
    """What a value is before nodes of some op types hand it on, one behind another.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32, f16 = (DTYPES["float32"], (2,)), (DTYPES["float16"], (2,))
    >>> g = Graph()
    >>> a = g.add_node("Split", "a", output_types=[f32, f32])
    >>> b = g.add_node("IdentityN", "b", inputs=a.outputs, output_types=[f32, f32])
    >>> c = g.add_node("Cast", "c", inputs=b.outputs[1:], output_types=[f16]).outputs[0]
    >>> origin(b.outputs[1]).name, origin(c).name, origin(c, SAME_BUT_FOR_TYPE).name
    ('a:1', 'c:0', 'a:1')
    """
    while value.producer.op_type in through and _index_behind(value) < len(value.producer.inputs):
        value = input_behind(value)
    return value


def resource_of(value: Value) -> Value:
    """The resource behind a resource value, through Identity and loops that hand it on."""
    return origin(value, IDENTITIES | LOOPS)


def updated_weight(node: Node) -> Value | None:
    """The variable that an operation of an optimizer of TF1 (`Apply*`, `ResourceApply*`) trains: its first input.

    The other variables that it writes are slots. None for other operations.
    """
    return resource_of(node.inputs[0]) if node.op_type.startswith(_OPTIMIZERS) and node.inputs else None


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
    return f"{node.op_type if opens_variable(node) else 'Variable'}:{where}:{name}"


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
        case op_type if op_type in LOSSES_WITH_GRADIENT:
            return ((0, 1),)
        case op_type if op_type.startswith("FusedBatchNorm"):
            return ((0, 0),)
        case _:
            return ()


def writes_resource(node: Node) -> Value | None:
    """The resource that the node overwrites, or None."""
    if node.op_type.startswith(_WRITES_HANDLES):
        return node.inputs[0] if node.inputs and node.inputs[0].dtype.name == "resource" else None
    return None


def written_resources(node: Node) -> tuple[Value, ...]:
    """All resources among the inputs that the node overwrites (optimizer kernels write several)."""
    if writes_resource(node) is None:
        return ()
    return tuple(v for v in node.inputs if v.dtype.name == "resource")


def written_references(node: Node) -> tuple[Value, ...]:
    """The inputs that the node writes where they are variables of TF1 without a handle: all of an optimizer's, the first one else."""
    if node.op_type.startswith(_UPDATES_REFERENCES):
        return node.inputs
    by_reference = node.op_type.startswith(_WRITES_REFERENCES) and node.op_type not in ("ScatterNd", "ScatterNdNonAliasingAdd")
    return tuple(v for v in node.inputs[:1] if v.dtype.name != "resource") if by_reference else ()


def assigns(node: Node) -> bool:
    """Whether it gives a variable another value as a whole, or adds to it as a whole."""
    return node.op_type.startswith("Assign")


def adds_to_variable(node: Node) -> bool:
    """Whether it adds to a variable, or to rows of it: such writes may come in any order."""
    return node.op_type.removeprefix("Resource").startswith(_ADDS_TO_VARIABLE)


def opens_variable(node: Node) -> bool:
    """Whether it gives the handle of a variable."""
    return node.op_type == "VarHandleOp"


def makes_table(node: Node) -> bool:
    """Whether it makes a table, or a handle of one."""
    return "HashTable" in node.op_type


def is_constant(node: Node) -> bool:
    """Whether its value stands in the graph."""
    return node.op_type == "Const"


def is_identity(node: Node) -> bool:
    """Whether it hands on one value."""
    return node.op_type == "Identity"


def only_orders(node: Node) -> bool:
    """Whether it is nothing but a point in the order, for which others wait."""
    return node.op_type == "NoOp"


def is_read(node: Node) -> bool:
    """Whether it gives the whole value of a variable with a handle."""
    return node.op_type == "ReadVariableOp"


def takes_from_stream(node: Node) -> bool:
    """Whether it takes data from an input pipeline, a queue or a reader."""
    return node.op_type.startswith(_TAKES_FROM_STREAM)


def is_batch_norm(node: Node) -> bool:
    """Whether one kernel does the whole of a batch normalization, perhaps with what Grappler fused into it."""
    return node.op_type.removeprefix("_") in BATCH_NORMS | {"FusedBatchNormEx"}


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


def is_loop_condition(node: Node) -> bool:
    """Whether it says if a loop of TF1 goes on."""
    return node.op_type in LOOP_CONDITIONS


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
        if only_orders(node) or node.op_type in ARGUMENTS or self.is_pure(node):
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
