"""Optimizer state (momentum, second moments, counters, learning rate), found by dataflow.

A non-trainable variable that the backward pass writes or reads is optimizer state, unless the forward pass computes with it. Arithmetic
that leads only to the backward pass and to weight updates is not a forward computation. An average of other variables is no optimizer
state.

The optimizers of TF1 update each weight with one operation, `Apply*` or `ResourceApply*`: its first input is the weight, and the other
variables that it writes are slots. That tells which variables are trained if no gradient does.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import islice

from graphwright.analyze.backward import data_ancestors
from graphwright.analyze.variable_access import Access
from graphwright.analyze.variable_updates import AVERAGE_OF_VARIABLE, describe_update
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.variables import updated_weight
from graphwright.ir.walk import consumers_of, reached

_ARITHMETIC = frozenset(
    "Identity IdentityN Cast Reshape Mul Sub Add AddV2 Neg RealDiv Div DivNoNan Sqrt Rsqrt Square Pow Maximum Minimum Sign Gather GatherV2 "
    "ResourceGather".split()
)
"""What optimizers compute an update with. A forward pass ends in other operations: it reduces to a loss."""


def find_optimizer_state(
    graph: Graph, accesses: Iterable[Access], trainable: AbstractSet[str], backward: AbstractSet[Node]
) -> frozenset[str]:
    """Return the keys of the variables that belong to the optimizer."""
    every = list(accesses)
    kernels = {a.top for a in every if a.writes and a.node is a.top and updated_weight(a.node) is not None}
    backward = backward | kernels
    own = [access for access in every if access.writes and access.key not in trainable]
    averages = {access.key for access in own if describe_update(access) == AVERAGE_OF_VARIABLE} if backward else set[str]()
    candidates: dict[str, list[Access]] = {}
    for access in every:
        if access.key not in trainable and access.key not in averages:
            candidates.setdefault(access.key, []).append(access)
    updates = {access.top for access in every if access.writes and access.key in trainable} if backward else set[Node]()
    ends = backward | updates
    touched = {key for key, found in candidates.items() if any(_meets(access, ends) for access in found)}
    if not touched:
        return frozenset()
    others = [a.top for key, found in candidates.items() if key not in touched for a in found if a.writes and a.top not in ends]
    needed = data_ancestors([*(v.producer for v in graph.outputs), *others]) if graph.outputs else None
    state: set[str] = set()
    for key in touched:
        reads = [a for a in candidates[key] if a.reads and a.top.outputs and a.top not in ends]
        if (needed is not None and not any(a.top in needed for a in reads)) or not any(
            _computes_forward(a, candidates[key], ends) for a in reads
        ):
            state.add(key)
    return frozenset(state)


def _meets(access: Access, ends: AbstractSet[Node]) -> bool:
    """Whether the backward pass or a weight update writes the variable, or uses its value."""
    behind = reached([access.top], lambda node: [c for v in node.outputs for c in v.consumers])
    return any(node in ends for node in islice(behind, _FAR))


_FAR = 64
"""Nodes after which a read that has not met the backward pass is taken for one of the forward pass: schedules are shorter."""


def _computes_forward(read: Access, found: Iterable[Access], ends: AbstractSet[Node]) -> bool:
    if read.node is not read.top:
        return True
    own = {access.top for access in found if access.writes}
    behind = reached([read.top], lambda node: (c for c in consumers_of(node, control=False) if c not in ends and c not in own))
    return any(node.op_type not in _ARITHMETIC for node in behind if node is not read.top)
