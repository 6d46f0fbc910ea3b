"""Effects of an op besides computing its outputs. An unknown op counts as having effects.

An op is *pure* when its outputs depend only on its inputs and nothing else changes: running it twice cannot be observed.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from graphwright.ir.traits.arithmetic import BINARY_IN_PLACE, UNARY_IN_PLACE
from graphwright.ir.traits.control_flow import CALL_TYPES, called_functions, is_control_flow
from graphwright.ir.traits.of_type import of_type
from graphwright.ir.traits.values import ARGUMENTS, VIEWS, VIEWS_OF_ALL, only_orders
from graphwright.ir.traits.variables import DRAWS_FROM_VARIABLE, READS_OF_VARIABLES, reads_resource, written_resources

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.graph import Graph
    from graphwright.ir.node import Node

_ONLY_COMPUTES = (VIEWS | VIEWS_OF_ALL | UNARY_IN_PLACE | BINARY_IN_PLACE) - {"ReadVariableOp"} | frozenset(
    "Const MatMul BatchMatMul BatchMatMulV2 Conv2D MaxPool AvgPool Shape Size Rank Fill Pack Unpack Transpose AddN Equal NotEqual Less "
    "LessEqual Greater GreaterEqual Select SelectV2 GatherV2 ArgMax Range".split()
)
"""Pure ops, for callers without TensorFlow's registry."""
CHECKS = frozenset({"Assert"})
"""May stop a run, and change nothing else."""
MESSAGES = frozenset({"Print", "PrintV2"})
"""Write to the terminal, and change nothing else."""
CALLS_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
WRITES_INTO_INPUT = frozenset({"InplaceAdd", "InplaceSub", "InplaceUpdate", "_ParallelConcatUpdate"})
"""Write into their input, whoever else reads it; TensorFlow's registry calls them stateless."""
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
writes_file, reads_file, moves_files = of_type({"SaveV2"}), of_type({"RestoreV2"}), of_type({"MergeV2Checkpoints"})
"""Return whether the node writes checkpoints, reads them, or renames their files."""
draws_from_system = of_type({"NonDeterministicInts"})
"""Returns whether it draws numbers that no seed determines."""
joins_texts = of_type({"AsString", "ReduceJoin", "StringJoin", "Pack"})
"""Returns whether it makes text from numbers, or one text from several."""
makes_counter = of_type({"StatelessRandomGetKeyCounter"})
"""Returns whether output 1 is a counter of a stateless generator whose lower half is 0, so that adding to it carries nothing over."""


def is_collective(node: Node) -> bool:
    return node.op_type.startswith(_COLLECTIVES) and node.op_type not in _NO_EXCHANGE


def takes_from_stream(node: Node) -> bool:
    return node.op_type.startswith(_TAKES_FROM_STREAM)


def has_known_effects(node: Node) -> bool:
    """Return whether the op type is known to have effects. An unknown op, or a call, may have effects as well."""
    return node.op_type in _STATEFUL_OPS or bool(written_resources(node))


def draws_by_counter(node: Node) -> bool:
    """Return whether it draws random numbers from a hidden counter of its own, which TensorFlow seeds by two attributes."""
    return "seed" in node.attrs and "seed2" in node.attrs


class Purity:
    """Answers whether nodes are pure. A control-flow node is pure when its functions are. Reading a variable counts as pure, because the
    planner keeps reads on their side of the writes.

    Args:
        stateful: the registry's answer by op type; a missing op type is unknown.
        also: op types that also count as pure.
    """

    def __init__(self, graph: Graph, stateful: dict[str, bool], *, also: AbstractSet[str] = frozenset()) -> None:
        self._graph = graph
        self._also = also
        self._stateful = stateful
        self._functions: dict[str, bool] = {}
        self._changing: dict[str, bool] = {}
        self._unseen: AbstractSet[Node] = frozenset()

    def but_for(self, nodes: AbstractSet[Node]) -> Purity:
        """Return the same answers, except that these nodes count as pure: nobody observes their effects."""
        purity = self.of(self._graph)
        purity._unseen = nodes
        return purity

    def is_unseen(self, node: Node) -> bool:
        return node in self._unseen

    def of(self, graph: Graph) -> Purity:
        return Purity(graph, self._stateful, also=self._also)

    def is_pure(self, node: Node) -> bool:
        """Return whether running the node twice is the same as running it once."""
        if node.op_type in READS_OF_VARIABLES or node.op_type in self._also or node in self._unseen:
            return True
        names = called_functions(node)
        if is_control_flow(node) or node.op_type in CALL_TYPES:
            return bool(names) and all(self._is_pure_function(name) for name in names)
        if node.op_type in _STATEFUL_OPS or names or draws_by_counter(node) or reads_resource(node):
            return False
        return not self._stateful.get(node.op_type, node.op_type not in _ONLY_COMPUTES)

    def changes_something(self, node: Node) -> bool:
        """Return whether others observe that it runs: not for pure nodes, a `NoOp`, or calls of functions without effects."""
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
