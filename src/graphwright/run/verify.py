"""Compare two steps: both run on the same inputs from the same variables.

Compared are the outputs of every step and, after the last one, every captured variable: weights, optimizer state, metrics, counters and
the state of random generators. The hidden counters of stateful random operations (`tf.random.uniform`) cannot be read or restored, so
both steps are rebuilt with seeds from the names of these nodes: a renamed copy draws other numbers, and is found. A step that captures or
takes resources other than variables (iterators, mutable tables) is refused.
"""

from __future__ import annotations

import importlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.traits.control_flow import FUNCTION_ATTRIBUTES
from graphwright.ir.traits.values import OPTIMIZED, RECOMPUTED_FROM
from graphwright.ir.traits.variables import READS_OF_TABLES
from graphwright.plain import Result
from graphwright.run.call_options import grappler_disabled, grappler_enabled
from graphwright.run.traced_step import TracedStep, first_batch, resolve
from graphwright.source.concrete_function import meets_other_processes
from graphwright.source.graph_def import nodes_of
from graphwright.source.rebuild import is_jit_compiled, read_variable, rebuild_concrete_function, variable_behind
from graphwright.source.tensorflow_import import import_keras

tf: Any = importlib.import_module("tensorflow")

# Relative and absolute tolerance where bitwise equality is not asked for, by the number of bits of the mantissa.
_TOLERANCES = {"float64": (1e-9, 1e-12), "float32": (1e-4, 1e-6), "float16": (1e-2, 1e-3), "bfloat16": (4e-2, 4e-3)}
_KINKS = 0.05  # of a variable's change
_MOVES = 16.0  # a sum in parts rounds at other places than the whole, and more often than once


@dataclass(frozen=True, slots=True)
class Verification(Result):
    """The result of comparing two steps.

    Attributes:
        equal: whether all outputs and variables agree, bit for bit or within the tolerance; `how` says which.
        bitwise: whether they agree bit for bit.
        max_abs: largest absolute difference of two numbers.
        max_rel: largest relative difference of two numbers.
        first_difference: the first differing output or variable, and by how much; "" when they are equal.
        how: what was compared, and under which conditions.
    """

    equal: bool
    bitwise: bool
    max_abs: float
    max_rel: float
    first_difference: str
    how: str

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        if self.bitwise:
            verdict = "equal bit for bit"
        elif self.equal:
            verdict = f"equal within the tolerance (largest difference {self.max_abs:.3g}, relative {self.max_rel:.3g})"
        else:
            verdict = f"DIFFERENT: {self.first_difference}"
        return f"{verdict}; {self.how}"


def verify(
    original: Any,
    rewritten: Any,
    inputs: Any,
    *,
    steps: int = 1,
    rtol: float | None = None,
    atol: float | None = None,
    grappler: bool = False,
    other_sums: bool = False,
    apart: bool = False,
) -> Verification:
    """Run two steps and compare their results; see `graphwright.verify` for the options and errors.

    Args:
        original: a `tf.function`, a `ConcreteFunction`, a `TracedStep`, or an object with a method `concrete_function(*inputs)`.
        rewritten: a step that should compute the same; it must capture the same variables, by identity.
        inputs: the arguments of one call, or data whose first batch they are; None for those of a `TracedStep`.
        apart: whether the two may have their own variables. Each runs from its own values; compared are the outputs, by position, and the
            changes of variables with the same name. Roundings may differ, as with `other_sums`.
    """
    if steps < 1:
        raise ArgumentError(f"steps={steps} was given", argument="steps", remedy="give 1 or more")
    inputs = first_batch(inputs)
    left, right = resolve(original, inputs), resolve(rewritten, inputs)
    for step in (left, right):
        _check_restorable(step)
    done = _is_optimized(right) and not _is_optimized(left) and not left.grappler_disabled
    grappled = "on for the original, of whose outcome the rewritten step is made" if done else "on" if grappler else "off"
    how = [f"{steps} step{'s' * (steps > 1)}", f"Grappler {grappled}"]
    pinned = _pin_random_nodes(left, right)
    if pinned is not None:
        how.append("stateful random nodes seeded by their names in both")

    def run(step: TracedStep) -> Iterator[list[tuple[str, NDArray[Any]]]]:
        # Rebuilt for each run, since the hidden counters of random nodes start over in a new function only.
        fresh = step if pinned is None else _rebuilt(step, pinned[0] if step is left else pinned[1])
        return _outputs_of(fresh, steps, grappler=step is left if done else grappler)

    handles = left.variable_handles()
    known = {id(handle) for handle in handles.values()}
    theirs = right.variable_handles()
    foreign = [name for name, handle in theirs.items() if id(handle) not in known]
    apart = apart and (bool(foreign) or not theirs)
    if foreign and not apart:
        return Verification(False, False, np.inf, np.inf, f"variable {foreign[0]} is used by the rewritten step only", ", ".join(how))

    if apart:
        how.append("each with variables and values of its own, all outputs compared, and what was changed in variables of one name")
    else:
        how.append(f"{len(handles)} variables and all outputs compared")
        theirs = handles
    devices = [str(tensor.device) for tensor in [*handles.values(), *left.arguments]]
    on_accelerator = any(device and "CPU" not in device for device in devices) or bool(tf.config.list_logical_devices("GPU"))
    exact = rtol is None and atol is None and not ((grappler and not done) or other_sums or on_accelerator or apart)
    exact = exact and not (is_jit_compiled(left.function) or is_jit_compiled(right.function))  # XLA fuses each in its own way
    # All processes must run the same steps, so none may run one more because of what it alone has found.
    exact = exact and not meets_other_processes(left.function)
    start, their_start = (_read_all(side) for side in (handles, theirs))

    def compare(rerun: TracedStep, *, bitwise: bool, free: _Free | None = None, nudged: int = 0) -> _Difference:
        difference = _Difference(rtol, atol, bitwise, free or _Free())
        own, before = (handles, start) if rerun is left else (theirs, their_start)
        _restore(own, _nudged(before, nudged) if nudged else before)
        for number, (ours, others) in enumerate(zip(outputs, run(rerun), strict=True), start=1):
            difference.add_structure(f"(step {number})", ours, _in_order(ours, others) if apart else others)
        for name, after in _read_all(own).items():
            if own is handles or (name in handles and _changed(start[name], end[name], before[name], after)):
                difference.add(f"variable {name}", end[name], after)
        return difference

    def roundings() -> _Free:
        """Measure how far the original's results move when its variables are moved by one rounding each."""
        free = _Free()
        for seed in (1, 2):
            free.moves |= {k: max(d, free.moves.get(k, 0.0)) for k, d in compare(left, bitwise=False, nudged=seed).by_place.items()}
            free.changes |= {f"variable {name}": _change(value, end[name]) for name, value in start.items()}
        return free

    try:
        outputs = list(run(left))
        end = _read_all(handles)
        free = roundings() if other_sums else _Free()
        difference, was_exact = compare(right, bitwise=exact, free=free), exact
        if exact and not difference.equal:
            # Bitwise equality cannot be asked of a step that need not give the same bits twice.
            if not compare(left, bitwise=True).equal:
                how.append("the original itself does not give the same bits twice")
                exact = False
            elif any(node.op == "AddN" and node.attr["N"].i > 2 for node in nodes_of(left.function.graph.as_graph_def())):
                how.append("it holds sums of three and more terms (AddN), which add them in the order that free buffers allow")
                exact = False
            elif done and any(node.op in FUNCTION_ATTRIBUTES for node in nodes_of(left.function.graph.as_graph_def())):
                how.append("it holds loops or branches, in which Grappler may group products of several factors in another way")
                exact = False
            if not exact:
                difference = compare(right, bitwise=False)
        if not exact and not difference.equal and not other_sums and (was_exact or (apart and (rtol, atol) == (None, None))):
            # Adam divides by a gradient's size, and makes a step of a rounding.
            other_sums, difference = True, compare(right, bitwise=False, free=roundings())
    finally:
        _restore(handles, start)
        _restore(theirs, their_start)
    if other_sums:
        how.append(
            "sums may be added in another order: results may move as far as by 16 roundings of the original's variables, a variable by 5 % "
            "of its change"
        )
    if not exact:
        how.append("tolerance " + (f"rtol={rtol or 0.0:g}, atol={atol or 0.0:g}" if (rtol, atol) != (None, None) else "by dtype"))
    else:
        how.append("bitwise equality asked for")
    return Verification(difference.equal, difference.bitwise, difference.max_abs, difference.max_rel, difference.first, ", ".join(how))


@dataclass(slots=True)
class _Free:
    """Allowed differences besides the tolerance, by place: `_MOVES` times the effect of a rounding, and `_KINKS` of the change."""

    moves: dict[str, float] = field(default_factory=dict[str, float])
    changes: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(slots=True)
class _Difference:
    """Collects differences: `bitwise` is the finding, `exact` the demand, `by_place` the largest distances."""

    rtol: float | None
    atol: float | None
    exact: bool
    free: _Free
    bitwise: bool = True
    first: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    by_place: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def equal(self) -> bool:
        return not self.first

    def add_structure(self, where: str, left: list[tuple[str, NDArray[Any]]], right: list[tuple[str, NDArray[Any]]]) -> None:
        if [path for path, _ in left] != [path for path, _ in right]:
            self._differs(f"outputs {where} have another structure: {len(left)} and {len(right)} tensors")
            return
        for (path, ours), (_, theirs) in zip(left, right, strict=True):
            self.add(f"output{path} {where}", ours, theirs)

    def add(self, where: str, left: NDArray[Any], right: NDArray[Any]) -> None:
        if left.dtype != right.dtype or left.shape != right.shape:
            self._differs(f"{where} is {left.dtype}{list(left.shape)} and {right.dtype}{list(right.shape)}")
            return
        if left.dtype == object or left.dtype.kind in "SU":
            if not np.array_equal(left, right):
                self._differs(f"{where} differs in {int(np.sum(left != right))} of {left.size} strings")
            return
        if left.tobytes() == right.tobytes():
            return
        self._add_numbers(where, left, right)

    def _add_numbers(self, where: str, left: NDArray[Any], right: NDArray[Any]) -> None:
        wide = np.complex128 if left.dtype.kind == "c" else np.float64
        dtype_name = str(left.dtype)
        inexact = left.dtype.kind in "fc" or dtype_name in _TOLERANCES
        ours, theirs = left.astype(wide), right.astype(wide)
        # NaN at the same place, the same infinity, and zeros of either sign count as equal.
        same = (left == right) | (np.isnan(ours) & np.isnan(theirs))
        if bool(np.all(same)):
            return
        self.bitwise = False
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            distance = np.where(same, 0.0, np.abs(ours - theirs))
            distance = np.where(np.isnan(distance), np.inf, distance)
            size = np.maximum(np.abs(ours), np.abs(theirs))
            relative = np.where(same, 0.0, np.where(np.isfinite(distance), distance / np.where(size == 0.0, 1.0, size), np.inf))
        self.max_abs, self.max_rel = max(self.max_abs, float(distance.max())), max(self.max_rel, float(relative.max()))
        self.by_place[where] = float(distance.max())
        if self.exact or not inexact:
            within = same
        else:
            rtol, atol = _TOLERANCES.get(dtype_name, _TOLERANCES["float32"])
            if (self.rtol, self.atol) != (None, None):
                rtol, atol = self.rtol or 0.0, self.atol or 0.0
            allowed = atol + rtol * np.where(np.isfinite(size), size, 0.0) + _MOVES * self.free.moves.get(where, 0.0)
            within = same | (distance <= allowed) | (np.linalg.norm(distance) <= _KINKS * self.free.changes.get(where, 0.0))
        if not bool(np.all(within)):
            count = int(np.sum(~within))
            share = f" at {count} of {left.size} places" if left.size > 1 else ""
            self._differs(f"{where} differs{share} by {float(distance.max()):.4g} (relative {float(relative.max()):.4g})")

    def _differs(self, what: str) -> None:
        self.bitwise = False
        self.first = self.first or what


def _outputs_of(step: TracedStep, count: int, *, grappler: bool) -> Iterator[list[tuple[str, NDArray[Any]]]]:
    for _ in range(count):
        # Not around the `yield`: the caller must not run under our options.
        with grappler_enabled() if grappler else grappler_disabled():
            outputs = step.run()
        on_host = [(path, np.asarray(leaf.numpy())) for path, leaf in _leaves(outputs)]
        del outputs  # the next step must not find the device holding these
        yield on_host


def _leaves(outputs: Any) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for keys, leaf in import_keras().tree.flatten_with_path(outputs):
        path, tensors = "".join(f"[{key!r}]" for key in keys), tf.nest.flatten(leaf, expand_composites=True)
        leaves += [(path + (f" (component {k})" if len(tensors) > 1 else ""), tensor) for k, tensor in enumerate(tensors)]
    return [(path, leaf) for path, leaf in leaves if tf.is_tensor(leaf)]


def _read(name: str, handle: Any) -> NDArray[Any]:
    if not bool(tf.raw_ops.VarIsInitializedOp(resource=handle)):
        raise ArgumentError(
            f"variable {name} has no value", cause="it was created and never initialized", remedy="initialize it, or run the step once"
        )
    return np.array(read_variable(handle).numpy())


def _read_all(handles: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {name: _read(name, handle) for name, handle in handles.items()}


def _changed(*values: NDArray[Any]) -> bool:
    return any(before.tobytes() != after.tobytes() for before, after in (values[:2], values[2:]))


def _in_order(ours: list[tuple[str, NDArray[Any]]], theirs: list[tuple[str, NDArray[Any]]]) -> list[tuple[str, NDArray[Any]]]:
    """Return outputs under our names if they have other names and are as many."""
    if len(ours) != len(theirs):
        return theirs
    named = dict(theirs)
    if named.keys() == dict(ours).keys():
        return [(path, named[path]) for path, _ in ours]
    return [(path, value) for (path, _), (_, value) in zip(ours, theirs, strict=True)]


def _restore(handles: Mapping[str, Any], values: Mapping[str, NDArray[Any]]) -> None:
    for name, handle in handles.items():
        # A copy: on the CPU a tensor may share the array's memory, and the next update writes into it.
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(values[name].copy()))


def _change(before: NDArray[Any], after: NDArray[Any]) -> float:
    return float(np.linalg.norm(after.astype(np.float64) - before.astype(np.float64))) if before.dtype.kind == "f" else 0.0


def _nudged(values: Mapping[str, NDArray[Any]], seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    moved = dict(values)
    for name, value in values.items():
        if value.dtype.kind == "f":
            up = rng.integers(0, 2, value.shape).astype(bool)
            moved[name] = np.nextafter(value, np.where(up, np.inf, -np.inf).astype(value.dtype))
    return moved


def _check_restorable(step: TracedStep) -> None:
    for external, internal in step.given:
        if external.dtype not in (tf.resource, tf.variant) or variable_behind(external) is not None:
            continue
        consumers = [consumer.type for consumer in internal.consumers()]
        if all(consumer in READS_OF_TABLES for consumer in consumers):
            continue
        raise UnsupportedError(
            f"the step {step.name!r} uses a resource that is not a variable, so its state cannot be restored",
            where=f"node {internal.op.name!r}, used by {', '.join(sorted(set(consumers)))}",
            cause="an iterator, a mutable table or a queue is used inside the step",
            remedy="pass its elements to the step as arguments",
        )


def _pin_random_nodes(left: TracedStep, right: TracedStep) -> tuple[Any, Any] | None:
    """Return the graphs of both steps with their stateful random nodes seeded by name; None without such nodes."""
    graphs = [step.function.graph.as_graph_def() for step in (left, right)]
    random_nodes = [
        [n for n in nodes_of(graph) if "seed" in n.attr and "seed2" in n.attr and n.attr["seed"].WhichOneof("value") == "i"]
        for graph in graphs
    ]
    if not any(random_nodes):
        return None
    # Inlining puts the name of the call before that of the node, so the last part is what both sides share. A node that
    # only the rewritten step has, under a last part that it has more often than the original, is a copy: it gets a seed
    # of its own.
    originals = Counter(_last_part(node.name) for node in random_nodes[0])
    known = {node.name for node in random_nodes[0]}
    left_over = Counter(originals)
    left_over.subtract(_last_part(node.name) for node in random_nodes[1] if node.name in known)
    for node in random_nodes[0]:
        _seed(node, _last_part(node.name))
    for node in sorted(random_nodes[1], key=lambda node: (node.name not in known, _is_copy(node), node.name)):
        last = _last_part(node.name)
        takes_over = node.name not in known and not _is_copy(node) and left_over[last] > 0
        left_over[last] -= takes_over
        _seed(node, last if node.name in known or takes_over else node.name)
    return graphs[0], graphs[1]


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _is_copy(node: Any) -> bool:
    return RECOMPUTED_FROM in node.attr or node.name.startswith("recomputed/")


def _seed(node: Any, text: str) -> None:
    digest = zlib.crc32(text.encode()) + 1  # TensorFlow takes (0, 0) for "any"
    node.attr["seed"].i = digest
    node.attr["seed2"].i = digest


def _is_optimized(step: TracedStep) -> bool:
    """Whether the step was made of Grappler's graph of another one: without Grappler it gives the bits of the other with it."""
    return any(OPTIMIZED in node.attr for node in step.function.graph.as_graph_def().node)


def _rebuilt(step: TracedStep, graph_def: Any) -> TracedStep:
    concrete = step.function
    rebuilt = rebuild_concrete_function(
        graph_def,
        inputs=[tensor.name for tensor in concrete.inputs[: len(step.arguments)]],
        captures=[(external, internal.name) for external, internal in (*step.captures, *step.call_time_captures)],
        outputs=[tensor.name for tensor in concrete.outputs],
        control_outputs=[operation.name for operation in concrete.graph.control_outputs],
        name=step.name,
        like=concrete,
        jit_compile=is_jit_compiled(concrete),
    )
    return replace(step, function=rebuilt)
