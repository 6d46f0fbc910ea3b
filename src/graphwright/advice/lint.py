"""Likely mistakes in a step: its uses of variables, its inputs, and open sizes."""

from __future__ import annotations

from collections.abc import Iterable

from graphwright.analyze.unknown_shapes import reason_of
from graphwright.analyze.update_checks import Finding
from graphwright.costs.parameters import parameters_of
from graphwright.ir.graph import Graph, Node
from graphwright.ir.walk import topological_order
from graphwright.run.traced_step import TracedStep
from graphwright.source.concrete_function import argument_shapes
from graphwright.step.flatten import FlatStep

_NAMED = 3  # nodes of one finding


def lint(traced: TracedStep, flat: FlatStep) -> tuple[Finding, ...]:
    """Return all findings about a step with its flat graph."""
    return (*parameters_of(traced).warnings, *_unused_inputs(traced, flat), *_open_dimensions(traced, flat.graph))


def _unused_inputs(traced: TracedStep, flat: FlatStep) -> Iterable[Finding]:
    inputs = zip(traced.names, flat.graph.inputs[: flat.binding.argument_count], strict=False)
    unused = tuple(name for name, value in inputs if not value.uses and value not in flat.graph.outputs)
    if unused:
        names, verb = ", ".join(unused), "is" if len(unused) == 1 else "are"
        yield Finding(
            "unused input",
            f"{names} {verb} given to the step, which reads nothing of {'it' if len(unused) == 1 else 'them'} but the shape",
            "leave it out of the data, or check whether a layer was forgotten",
            unused,
        )


def _open_dimensions(traced: TracedStep, graph: Graph) -> Iterable[Finding]:
    """Return sizes for which XLA has no single program: open ones of the signature, and those that depend on data."""
    open_axes = tuple(
        f"dimension {axis} of {name}"
        for name, shape in zip(traced.names, argument_shapes(traced.function), strict=False)
        for axis, size in enumerate(shape or ())
        if size is None and (axis or traced.is_compiled)  # an open batch is what it should be, unless XLA compiles for each
    )
    if open_axes:
        yield Finding(
            "open dimension",
            f"the signature leaves {', '.join(open_axes)} open: with jit_compile=True XLA compiles a program for each new size",
            "pad the data to few sizes, or state the size in the signature",
            open_axes,
        )
    alike: dict[tuple[str, str], list[str]] = {}
    for node in _first_of_unknown_size(graph):
        alike.setdefault((node.op_type, reason_of(node)), []).append(node.name)
    for (op_type, reason), names in alike.items():
        listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        verb = "makes" if len(names) == 1 else "make"
        yield Finding(
            "open dimension",
            f"the size of what {listed} ({op_type}) {verb} is not known before the step runs ({reason}): XLA compiles for sizes that it "
            "knows, so jit_compile=True fails here or works on the largest size",
            "use a mask of the full size in its place, or state the size behind it with tf.ensure_shape",
            tuple(names),
        )


def _first_of_unknown_size(graph: Graph) -> list[Node]:
    """Return nodes that make values whose size depends on data, and read none."""
    unknown = {value for value, exact in graph.at_most.items() if exact is None or None in exact}
    return [
        node
        for node in (topological_order(graph) if unknown else ())
        if not unknown.isdisjoint(node.outputs) and unknown.isdisjoint(node.inputs)
    ]
