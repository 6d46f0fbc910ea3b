"""Estimate the time of a node: the longer of FLOPs over a rate and bytes over a rate (the roofline model: Williams, Waterman and Patterson,
2009), plus a constant per execution.

Only ratios between ops matter to a plan. The rates come from profiles of TensorFlow 2.21 with oneDNN on two AVX-512 cores.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from graphwright.ir.dtypes import element_count
from graphwright.ir.graph import Node
from graphwright.ir.traits.arithmetic import COMBINES_TWO
from graphwright.ops.catalog import BYTES_PER_S, PRODUCTS, WIDENS
from graphwright.ops.flops import node_flops

_PRODUCT_FLOPS_PER_S = 1.0e11
_OTHER_FLOPS_PER_S = 1.0e10
EXECUTION_S = 3e-6
_BYTES_PER_S = 4.0e10
_BROADCAST_BYTES_PER_S = 1.5e10
_NARROW = frozenset({"bfloat16", "float16"})
_NARROW_PRODUCT_FLOPS_PER_S = 2.5e11
"""Of products in 16 bits, on a processor that has instructions for them."""
_WIDENING, _WIDENED_BYTES_PER_S = 4, 5e9
"""Arithmetic on 16 bits, done in 32: how many times slower a byte is where a kernel does more than move it, and the most there is."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """The limits of a machine: FLOPs per second of a large matrix product, bytes per second to and from memory, and how they are known."""

    flops_per_s: float
    bytes_per_s: float
    how: str


@dataclass(frozen=True, slots=True)
class Rates:
    """The speed of a machine.

    Attributes:
        product_flops_per_s: in matrix products and convolutions, by name of the dtype; float32 stands for others.
        other_flops_per_s: in other operations.
        bytes_per_s: to and from memory.
        execution_s: the least duration of an execution.
        how: measured, given or assumed, in words.
        kernels: whether kernels are those of TensorFlow on a CPU, some of which are slow.
    """

    product_flops_per_s: Mapping[str, float]
    other_flops_per_s: float
    bytes_per_s: float
    execution_s: float
    how: str
    kernels: bool = False

    def product(self, dtype: str) -> float:
        return self.product_flops_per_s.get(dtype, self.product_flops_per_s["float32"])


ASSUMED_RATES = Rates(
    {"float32": _PRODUCT_FLOPS_PER_S, **dict.fromkeys(_NARROW, _NARROW_PRODUCT_FLOPS_PER_S)},
    _OTHER_FLOPS_PER_S,
    _BYTES_PER_S,
    EXECUTION_S,
    "assumed for two AVX-512 cores",
    True,
)
ASSUMED_ROOFS = Roofs(_PRODUCT_FLOPS_PER_S, _BYTES_PER_S, "assumed for two AVX-512 cores, not measured")


def estimated_time_s(nodes: tuple[Node, ...], rates: Rates = ASSUMED_RATES) -> float:
    """Return the estimated seconds of one execution of the nodes, one after the other."""
    return sum(_node_time_s(node, rates) for node in nodes)


def _node_time_s(node: Node, rates: Rates) -> float:
    flops, moved, kind = node_flops(node) or 0.0, _moved_bytes(node), node.op_type
    rate = rates.product(node.outputs[0].dtype.name) if kind in PRODUCTS else rates.other_flops_per_s
    if not rates.kernels:
        return rates.execution_s + max(flops / rate, moved / rates.bytes_per_s)
    bytes_per_s = BYTES_PER_S.get(kind, _BROADCAST_BYTES_PER_S if _broadcasts(node) else rates.bytes_per_s)
    if kind in WIDENS and any(value.dtype.name in _NARROW for value in (*node.inputs, *node.outputs)):
        bytes_per_s = min(bytes_per_s / _WIDENING, _WIDENED_BYTES_PER_S)
    return rates.execution_s + max(0.0 if kind in BYTES_PER_S else flops / rate, moved / bytes_per_s)


def _broadcasts(node: Node) -> bool:
    result = element_count(node.outputs[0].shape) if node.op_type in COMBINES_TWO else None
    return result is not None and any(1 < (element_count(value.shape) or 0) < result for value in node.inputs)


def _moved_bytes(node: Node) -> int:
    return sum(value.nbytes or 0 for value in dict.fromkeys((*node.inputs, *node.outputs)))
