"""Detaching, connecting and bypassing parts of a graph. An argument `sgv` is a view, or an argument of `make_view`."""

from __future__ import annotations

from typing import Any

from graphwright.editor.reroute import check_ts_compatibility, remove_control_inputs, reroute_inputs, reroute_ts, swap_inputs, swap_outputs
from graphwright.editor.select import check_cios
from graphwright.editor.subgraph import SubGraphView, make_view
from graphwright.editor.tensor import Tensor
from graphwright.editor.util import ControlOutputs, check_graphs, make_placeholder_from_tensor


def detach_control_inputs(sgv: Any) -> None:
    """Remove control edges from outside to the nodes of a view."""
    view = make_view(sgv)
    members = set(view.ops)
    for op in view.ops:
        outside = [cop for cop in op.control_inputs if cop not in members]
        if outside:
            remove_control_inputs(op, outside)


def detach_control_outputs(sgv: Any, control_outputs: ControlOutputs) -> None:
    """Remove control edges from the nodes of a view to outside."""
    if not isinstance(control_outputs, ControlOutputs):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a gde.ControlOutputs, got: {type(control_outputs)}")
    view = make_view(sgv)
    members = set(view.ops)
    for op in view.ops:
        for waiting in control_outputs.get(op):
            if waiting not in members:
                remove_control_inputs(waiting, op)


def detach_inputs(sgv: Any, control_inputs: bool = False) -> tuple[SubGraphView, list[Tensor]]:
    """Let the nodes of a view, which is updated, read placeholders instead of its inputs; return both. With `control_inputs`, remove
    control edges from outside too.
    """
    view = make_view(sgv)
    placeholders = [make_placeholder_from_tensor(view.graph, t).output(0) for t in view.inputs]
    swap_inputs(view, placeholders)
    if control_inputs:
        detach_control_inputs(view)
    return view, placeholders


def detach_outputs(sgv: Any, control_outputs: ControlOutputs | None = None) -> tuple[SubGraphView, list[Tensor]]:
    """Let readers of the outputs of a view read placeholders; return a view with the outputs that were read, and the placeholders. With
    `control_outputs`, remove control edges to the outside too.
    """
    check_cios(control_outputs=control_outputs)
    view = make_view(sgv)
    view = view.remap_outputs(k for k, t in enumerate(view.outputs) if t.ir.uses)
    readers = SubGraphView(view.consumers())
    outputs = set(view.outputs)
    read = [t for t in readers.inputs if t in outputs]
    view = view.remap_outputs(read)
    placeholders = [make_placeholder_from_tensor(readers.graph, t).output(0) for t in read]
    swap_outputs(view, placeholders)
    if control_outputs is not None:
        detach_control_outputs(view, control_outputs)
    return view, placeholders


def detach(
    sgv: Any, control_inputs: bool = False, control_outputs: ControlOutputs | None = None, control_ios: ControlOutputs | None = None
) -> tuple[SubGraphView, list[Tensor], list[Tensor]]:
    """Apply `detach_inputs` and `detach_outputs`; return the view, the placeholders before it and the placeholders behind it."""
    control_inputs, control_outputs = check_cios(control_inputs, control_outputs, control_ios)
    view = make_view(sgv)
    _, before = detach_inputs(view, control_inputs)
    _, behind = detach_outputs(view, control_outputs)
    return view, before, behind


def connect(sgv0: Any, sgv1: Any, disconnect_first: bool = False) -> tuple[SubGraphView, SubGraphView]:
    """Let the nodes of `sgv1` read the outputs of `sgv0` instead of their inputs, optionally after the present readers are detached."""
    view0, view1 = make_view(sgv0), make_view(sgv1)
    check_graphs(view0, view1)
    check_ts_compatibility(view0.outputs, view1.inputs)
    if disconnect_first:
        detach_outputs(view0)
    reroute_inputs(SubGraphView(passthrough_ts=list(view0.outputs)), view1)
    return view0, view1


def bypass(sgv: Any) -> tuple[SubGraphView, list[Tensor]]:
    """Let readers of the outputs of a view read its inputs, and the view read placeholders, which are returned with it."""
    view = make_view(sgv)
    inputs = list(view.inputs)
    check_ts_compatibility(inputs, view.outputs)
    view, placeholders = detach_inputs(view)
    reroute_ts(inputs, view.outputs)
    return view, placeholders
