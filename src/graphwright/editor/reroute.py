"""Rerouting: who reads which tensor. The tensor that takes over comes first, as it always did: `reroute_ts(new, old)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphwright.editor.node import Node
from graphwright.editor.subgraph import SubGraphView, make_view
from graphwright.editor.tensor import Tensor
from graphwright.editor.util import check_graphs, get_consuming_ops, make_list_of_op, make_list_of_t
from graphwright.editor.values import to_tf_shape
from graphwright.ir import graph as ir


def check_ts_compatibility(ts0: Sequence[Tensor], ts1: Sequence[Tensor]) -> None:
    """Raise unless the tensors can stand for each other, pair by pair, as far as their shapes are known: nothing is inferred for it.

    Raises:
        ValueError: numbers, dtypes or shapes differ, or one of `ts0` was removed from its graph.
    """
    if len(ts0) != len(ts1):
        raise ValueError(f"ts0 and ts1 have different sizes: {len(ts0)} != {len(ts1)}")
    for t0, t1 in zip(ts0, ts1, strict=True):
        if t0.graph is None:
            raise ValueError(f"{t0.name} was removed from its graph.")
        if t0.ir.dtype != t1.ir.dtype:
            raise ValueError(f"Dtypes {t0.dtype} of {t0.name} and {t1.dtype} of {t1.name} are not compatible.")
        known = to_tf_shape(t0.ir.known_shape), to_tf_shape(t1.ir.known_shape)
        if not known[0].is_compatible_with(known[1]):
            raise ValueError(f"Shapes {known[0]} of {t0.name} and {known[1]} of {t1.name} are not compatible.")


def _reroute_ts(ts0: Any, ts1: Any, *, swap: bool, can_modify: Any = None, cannot_modify: Any = None) -> int:
    """Let the readers of each tensor in `ts1` read its partner in `ts0`, and the other way round in a swap."""
    ts0, ts1 = make_list_of_t(ts0), make_list_of_t(ts1)
    allowed = None if can_modify is None else frozenset(make_list_of_op(can_modify))
    refused = frozenset[Node]() if cannot_modify is None else frozenset(make_list_of_op(cannot_modify))
    check_graphs(*ts0, *ts1)
    check_ts_compatibility(ts0, ts1)
    # Who reads what is noted before anything changes, so that a tensor may be named more than once.
    jobs: list[tuple[ir.Use, Tensor]] = []
    for t0, t1 in zip(ts0, ts1, strict=True):
        if t0 != t1:
            jobs += [(use, t0) for use in t1.ir.uses]
            jobs += [(use, t1) for use in t0.ir.uses] if swap else []
    if not jobs:
        return 0
    graph = ts0[0].home
    graph.increment_version_counter()
    changed = 0
    for use, new in jobs:
        reader = graph.view_of(use.node)
        if (allowed is None or reader in allowed) and reader not in refused:
            graph.ir.replace_input(use.node, use.index, new.ir)
            changed += 1
    return changed


def swap_ts(ts0: Any, ts1: Any, can_modify: Any = None, cannot_modify: Any = None) -> int:
    """Swap the readers of the tensors in each pair; returns how many inputs changed.

    Args:
        ts0: tensors, or a tensor.
        ts1: as many.
        can_modify: only these nodes are changed.
        cannot_modify: these nodes are not changed.

    Raises:
        TypeError: something else than tensors or nodes is given.
        ValueError: numbers, dtypes, shapes or graphs of the tensors do not fit; nothing is changed then.
    """
    return _reroute_ts(ts0, ts1, swap=True, can_modify=can_modify, cannot_modify=cannot_modify)


def reroute_ts(ts0: Any, ts1: Any, can_modify: Any = None, cannot_modify: Any = None) -> int:
    """Let what reads a tensor of `ts1` read its partner in `ts0`; returns how many inputs changed.

    Nothing reads the tensors of `ts1` afterwards, unless it may not be changed. Signatures go on naming them.

    Args:
        ts0: the new tensors, or the new tensor.
        ts1: the old ones, as many.
        can_modify: only these nodes are changed.
        cannot_modify: these nodes are not changed.

    Raises:
        TypeError: something else than tensors or nodes is given.
        ValueError: numbers, dtypes, shapes or graphs of the tensors do not fit; nothing is changed then.
    """
    return _reroute_ts(ts0, ts1, swap=False, can_modify=can_modify, cannot_modify=cannot_modify)


def _reroute_views(sgv0: Any, sgv1: Any, *, swap: bool, inputs: bool = False, outputs: bool = False) -> tuple[SubGraphView, SubGraphView]:
    view0, view1 = make_view(sgv0), make_view(sgv1)
    if inputs and outputs:
        check_ts_compatibility(view0.inputs, view1.inputs)
    check_graphs(view0, view1)
    if outputs:
        _reroute_ts(view0.outputs, view1.outputs, swap=swap, cannot_modify=[*view0.ops, *view1.ops])
    if inputs:
        # Readers of passthrough tensors may be changed too: there is nothing else to change for them.
        can_modify = [*view0.ops, *view1.ops, *get_consuming_ops(view0.passthroughs), *get_consuming_ops(view1.passthroughs)]
        _reroute_ts(view0.inputs, view1.inputs, swap=swap, can_modify=can_modify)
        before0, before1 = view0.copy(), view1.copy()
        _take_inputs(view1, before0)
        if swap:
            _take_inputs(view0, before1)
    return view0, view1


def _take_inputs(view: SubGraphView, other: SubGraphView) -> None:
    """Let a view show, in place, the inputs that its nodes have now."""
    inputs, through = list(other.inputs), list(other.passthroughs)
    outputs = [inputs[other.input_index(t)] if t in through else t for t in view.outputs]
    view.assign(view.graph, view.ops, inputs, outputs, through)


def swap_inputs(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Let the nodes of each view read the inputs of the other; the views are changed to show it.

    Args:
        sgv0: a view, or what `make_view` takes.
        sgv1: the same, with as many inputs.

    Raises:
        ValueError: the inputs do not fit, or the views are of different graphs.
    """
    return _reroute_views(sgv0, sgv1, swap=True, inputs=True)


def reroute_inputs(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Let the nodes of `sgv1` read the inputs of `sgv0`; the views are changed to show it.

    Raises:
        ValueError: the inputs do not fit, or the views are of different graphs.
    """
    return _reroute_views(sgv0, sgv1, swap=False, inputs=True)


def swap_outputs(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Let what reads the outputs of each view read those of the other.

    Raises:
        ValueError: the outputs do not fit, or the views are of different graphs.
    """
    return _reroute_views(sgv0, sgv1, swap=True, outputs=True)


def reroute_outputs(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Let what reads the outputs of `sgv1` read those of `sgv0`.

    Raises:
        ValueError: the outputs do not fit, or the views are of different graphs.
    """
    return _reroute_views(sgv0, sgv1, swap=False, outputs=True)


def swap_ios(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """`swap_outputs` and `swap_inputs`.

    Raises:
        ValueError: inputs or outputs do not fit, or the views are of different graphs.
    """
    return _reroute_views(sgv0, sgv1, swap=True, inputs=True, outputs=True)


def reroute_ios(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """`reroute_outputs` and `reroute_inputs`.

    Raises:
        ValueError: inputs or outputs do not fit, or the views are of different graphs.
    """
    return _reroute_views(sgv0, sgv1, swap=False, inputs=True, outputs=True)


def remove_control_inputs(op: Node, cops: Any) -> None:
    """Remove control inputs from a node.

    Raises:
        TypeError: `op` is not a node.
        ValueError: one of them is not a control input; nothing is changed then.
    """
    doomed = _controls(op, cops, there=True)
    op.set_control_inputs(cop for cop in op.control_inputs if cop not in doomed)


def add_control_inputs(op: Node, cops: Any) -> None:
    """Add control inputs to a node.

    Raises:
        TypeError: `op` is not a node.
        ValueError: one of them is a control input already; nothing is changed then.
    """
    fresh = _controls(op, cops, there=False)
    op.set_control_inputs([*op.control_inputs, *fresh])


def _controls(op: Any, cops: Any, *, there: bool) -> list[Node]:
    """The nodes, once it is known whether the node waits for them."""
    if not isinstance(op, Node):
        raise TypeError(f"Expected a gde.Node, got: {type(op)}")
    found = make_list_of_op(cops, allow_graph=False)
    for cop in found:
        if (cop in op.control_inputs) != there:
            raise ValueError(f"{cop.name} is {'not' if there else 'already'} a control_input of {op.name}")
    return found
