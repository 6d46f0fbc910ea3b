"""Rerouting of tensors and control edges. The new tensor comes first: `reroute_ts(new, old)`.

Arguments `sgv0` and `sgv1` are views, or arguments of `make_view`. If they are incompatible, a ValueError is raised.
"""

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
    """Raise a ValueError unless dtypes and known shapes agree pair by pair, and no tensor of `ts0` was removed."""
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
    ts0, ts1 = make_list_of_t(ts0), make_list_of_t(ts1)
    allowed = None if can_modify is None else frozenset(make_list_of_op(can_modify))
    refused = frozenset[Node]() if cannot_modify is None else frozenset(make_list_of_op(cannot_modify))
    check_graphs(*ts0, *ts1)
    check_ts_compatibility(ts0, ts1)
    # All uses are collected before anything changes, so that a tensor may be named more than once.
    changes: list[tuple[ir.Use, Tensor]] = []
    for t0, t1 in zip(ts0, ts1, strict=True):
        if t0 != t1:
            changes += [(use, t0) for use in t1.ir.uses]
            changes += [(use, t1) for use in t0.ir.uses] if swap else []
    if not changes:
        return 0
    graph = ts0[0].home
    graph.increment_version_counter()
    changed = 0
    for use, new in changes:
        reader = graph.view_of(use.node)
        if (allowed is None or reader in allowed) and reader not in refused:
            graph.ir.replace_input(use.node, use.index, new.ir)
            changed += 1
    return changed


def swap_ts(ts0: Any, ts1: Any, can_modify: Any = None, cannot_modify: Any = None) -> int:
    """Swap the readers of the tensors in each pair; return the number of changed inputs. See `reroute_ts`."""
    return _reroute_ts(ts0, ts1, swap=True, can_modify=can_modify, cannot_modify=cannot_modify)


def reroute_ts(ts0: Any, ts1: Any, can_modify: Any = None, cannot_modify: Any = None) -> int:
    """Let readers of a tensor of `ts1` read its partner in `ts0`; return the number of changed inputs. Signatures are not changed.

    `can_modify` and `cannot_modify` choose the readers. If a ValueError is raised, nothing is changed.
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
        # Passthrough tensors have no reader in the views, so their readers outside are changed.
        can_modify = [*view0.ops, *view1.ops, *get_consuming_ops(view0.passthroughs), *get_consuming_ops(view1.passthroughs)]
        _reroute_ts(view0.inputs, view1.inputs, swap=swap, can_modify=can_modify)
        before0, before1 = view0.copy(), view1.copy()
        _take_inputs(view1, before0)
        if swap:
            _take_inputs(view0, before1)
    return view0, view1


def _take_inputs(view: SubGraphView, other: SubGraphView) -> None:
    """Update the inputs of a view, in place, after they were replaced by the inputs of another view."""
    inputs, through = list(other.inputs), list(other.passthroughs)
    outputs = [inputs[other.input_index(t)] if t in through else t for t in view.outputs]
    view.assign(view.graph, view.ops, inputs, outputs, through)


def swap_inputs(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Let the nodes of each view read the inputs of the other; the views are updated."""
    return _reroute_views(sgv0, sgv1, swap=True, inputs=True)


def reroute_inputs(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Let the nodes of `sgv1` read the inputs of `sgv0`; the views are updated."""
    return _reroute_views(sgv0, sgv1, swap=False, inputs=True)


def swap_outputs(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Swap the readers of the outputs of two views."""
    return _reroute_views(sgv0, sgv1, swap=True, outputs=True)


def reroute_outputs(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Let readers of the outputs of `sgv1` read the outputs of `sgv0`."""
    return _reroute_views(sgv0, sgv1, swap=False, outputs=True)


def swap_ios(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Apply `swap_outputs` and `swap_inputs`."""
    return _reroute_views(sgv0, sgv1, swap=True, inputs=True, outputs=True)


def reroute_ios(sgv0: Any, sgv1: Any) -> tuple[SubGraphView, SubGraphView]:
    """Apply `reroute_outputs` and `reroute_inputs`."""
    return _reroute_views(sgv0, sgv1, swap=False, inputs=True, outputs=True)


def remove_control_inputs(op: Node, cops: Any) -> None:
    """Remove control inputs; if a node is not one, raise a ValueError and change nothing."""
    controls = _controls(op, cops, present=True)
    op.set_control_inputs(cop for cop in op.control_inputs if cop not in controls)


def add_control_inputs(op: Node, cops: Any) -> None:
    """Add control inputs; if a node is one already, raise a ValueError and change nothing."""
    controls = _controls(op, cops, present=False)
    op.set_control_inputs([*op.control_inputs, *controls])


def _controls(op: Any, cops: Any, *, present: bool) -> list[Node]:
    if not isinstance(op, Node):
        raise TypeError(f"Expected a gde.Node, got: {type(op)}")
    controls = make_list_of_op(cops, allow_graph=False)
    for cop in controls:
        if (cop in op.control_inputs) != present:
            raise ValueError(f"{cop.name} is {'not' if present else 'already'} a control_input of {op.name}")
    return controls
