"""Floating-point operations of one node. A multiply-add counts as two.

The rules are in `graphwright.ops`, one family per file; users add their own with `register_flops`. None means *unknown*: it
is listed and never taken for zero.

Conventions: a transcendental function counts as one; a window at a border counts in full; arithmetic on integers and truth values counts
nothing, except for matrix products and convolutions, which count the same in every type.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Self

from graphwright.errors import ArgumentError
from graphwright.ir.graph import Node
from graphwright.ops.catalog import FLOPS
from graphwright.ops.data import silent_rule
from graphwright.ops.family import Count, FlopRule
from graphwright.ops.quantized import quantized_rule
from graphwright.ops.sizes import UnknownSizeError

_derived: dict[str, FlopRule | None] = {}  # by op types that no table lists
_registered: dict[str, list[FlopRule]] = {}  # by users, the last one counts


def node_flops(node: Node) -> float | None:
    """Return the FLOPs of one execution, or None if there is no rule or a shape is unknown."""
    rule = flop_rule(node.op_type)
    if rule is None:
        return None
    try:
        return rule.count(node)
    except UnknownSizeError:
        return None


def flop_rule(op_type: str) -> FlopRule | None:
    """Return the rule of an op type, or None. Ops of oneDNN have the rule of the op that they replace.

    >>> flop_rule("_MklNativeConv2D").formula
    '2 outputs window channels (of a group)'
    >>> flop_rule("PyFunc") is None
    True
    """
    if rules := _registered.get(op_type):
        return rules[-1]
    if op_type in FLOPS:
        return FLOPS[op_type]
    if op_type not in _derived:
        _derived[op_type] = _derive(op_type)
    return _derived[op_type]


def _derive(op_type: str) -> FlopRule | None:
    rule = quantized_rule(op_type)
    prefix = "_MklNative" if op_type.startswith("_MklNative") else "_Mkl"
    if rule is None and op_type.startswith(prefix):  # `_MklNativeConv2D` stands for `Conv2D`, `_MklFusedMatMul` for `_FusedMatMul`
        name = op_type.removeprefix(prefix)
        rule = FLOPS.get(f"_{name}") or FLOPS.get(name) or silent_rule(name)
    return rule or silent_rule(op_type)


def built_in_rules() -> Mapping[str, FlopRule]:
    """Return graphwright's rules by op type; families recognized by name (text, files, ...) are not listed."""
    return MappingProxyType(FLOPS)


class RegisteredFlops:
    """A user's rule. `undo()` removes it, and so does the end of a `with` block."""

    def __init__(self, op_type: str, rule: FlopRule) -> None:
        self.op_type = op_type
        self._rule = rule
        _registered.setdefault(op_type, []).append(rule)

    def undo(self) -> None:
        """Remove the rule; the previous one counts again. A second call does nothing."""
        _registered[self.op_type] = [rule for rule in _registered[self.op_type] if rule is not self._rule]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.undo()


def register_flops(op_type: str, rule: Count, *, formula: str = "given by the user") -> RegisteredFlops:
    """Register the FLOPs of an op type that graphwright does not know, or override its rule.

    Args:
        op_type: for example "MyOp".
        rule: a function from a `Node` (its `inputs` and `outputs` have `shape` and `dtype`, its `attrs` the attributes) to the FLOPs of one
            execution, or None if they are unknown.
        formula: the count in words, for tables.

    Returns:
        An object that removes the rule: by `.undo()`, or at the end of a `with` block. Otherwise the rule holds for the whole process.

    Raises:
        ArgumentError: the op type is empty, or the rule cannot be called.

    >>> from graphwright.ir.text import from_text
    >>> node = from_text('graph "g"\\n%x = Const() : float32[5]\\n%y = MyOp(%x:0) : float32[5]')["y"]
    >>> with register_flops("MyOp", lambda node: 3.0 * node.outputs[0].shape[0]):
    ...     node_flops(node)
    15.0
    >>> print(node_flops(node))
    None
    """
    if not op_type:
        raise ArgumentError("the op type is empty", argument="op_type", remedy='give a name such as "MyOp"')
    if not callable(rule):
        raise ArgumentError(
            f"{type(rule).__name__} is not a rule",
            argument="rule",
            remedy="give a function from a node to its FLOPs, such as lambda node: 2.0 * node.outputs[0].nbytes",
        )
    return RegisteredFlops(op_type, FlopRule("given", formula, rule))
