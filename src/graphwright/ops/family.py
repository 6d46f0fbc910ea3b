"""The form of a family's facts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from graphwright.ir.graph import Node
from graphwright.ops.dimensions import SplitRule
from graphwright.ops.sizes import output_size, size_of, touches_floats

Count = Callable[[Node], "float | None"]
"""FLOPs of one execution of a node, or None where they are not known."""
Scratch = Callable[[Node], int]
"""Bytes that a kernel allocates beyond its outputs."""
Traffic = Literal["nothing", "outputs", "rows", "rows of inputs"]
"""What a kernel reads and writes, where that is not all inputs and outputs: no bytes, its outputs only, rows of its first input (as many as
it writes), or as many bytes as its inputs twice."""


@dataclass(frozen=True, slots=True)
class FlopRule:
    """How an op type is counted: its family, the count in words, and the rule."""

    family: str
    formula: str
    count: Count


class ScratchRules(NamedTuple):
    """Upper bounds on the scratch of a kernel: Eigen's, oneDNN's on the CPU, and the GPU's."""

    eigen: Scratch | None = None
    onednn: Scratch | None = None
    gpu: Scratch | None = None


def on_cpu(rule: Scratch) -> ScratchRules:
    return ScratchRules(rule, rule)


@dataclass(frozen=True, slots=True)
class Family:
    """Facts by op type. Op types with the same fact stand in one text, apart by spaces.

    Attributes:
        flops: by name of the group, the op types, the formula in words, and the count.
        splits: split rules.
        scratch: bytes of kernels beyond their outputs.
        weights: the inputs that a constant weight may be; () for all of them.
        weight_passes: op types whose first input, if it is a weight, is one behind them.
        traffic: bytes moved, if they are not those of all inputs and outputs.
        bytes_per_s: the speed of kernels below that of memory, on two AVX-512 cores.
        products: op types at the speed of matrix products.
        widens: op types whose arithmetic on 16 bits runs in 32.
        cheap: op types whose kernels override `OpKernel::IsExpensive` to say no.
        rows_in_data: prefixes of op types that count the rows of their results in data, and how.
    """

    flops: Mapping[str, Sequence[tuple[str, str, Count]]] = field(default_factory=dict[str, Sequence[tuple[str, str, Count]]])
    splits: Mapping[str, SplitRule] = field(default_factory=dict[str, SplitRule])
    scratch: Mapping[str, ScratchRules] = field(default_factory=dict[str, ScratchRules])
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    weight_passes: str = ""
    traffic: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])
    bytes_per_s: Mapping[str, float] = field(default_factory=dict[str, float])
    products: str = ""
    widens: str = ""
    cheap: str = ""
    rows_in_data: Mapping[str, str] = field(default_factory=dict[str, str])


def per_output(factor: float) -> Count:
    return lambda node: factor * output_size(node)


def per_input(factor: float, index: int = 0) -> Count:
    return lambda node: factor * size_of(node, index)


def reduced(node: Node) -> float:
    """Count the elements of the input less those of the output."""
    return float(max(size_of(node) - output_size(node), 0))


def on_floats(rule: Count) -> Count:
    """Return the rule for nodes that touch floats, and 0 for nodes with integers only."""
    return lambda node: rule(node) if touches_floats(node) else 0.0


def zero(_: Node) -> float:
    return 0.0
