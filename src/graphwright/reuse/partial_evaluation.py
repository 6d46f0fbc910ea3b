"""`partially_evaluated`: what a function computes of arguments that seldom change is computed when they do."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from graphwright.analyze.flop_execution import execute
from graphwright.analyze.flops import node_flops
from graphwright.analyze.variable_access import find_accesses
from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.gradient.arguments import listed
from graphwright.gradient.results import packing, tensors_of, values_of
from graphwright.gradient.traced import BySignature
from graphwright.ir.dtypes import byte_count
from graphwright.ir.edit.insert import add_placeholder
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import CALL_TYPES
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import PLACEHOLDERS, is_constant
from graphwright.ir.traits.variables import READS_OF_VARIABLES
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.reuse.cached import CacheInfo, cached, functions_as_written
from graphwright.reuse.pure_function import culprit_in, does, impure_nodes
from graphwright.reuse.unchanging import find_frontier, find_unchanging
from graphwright.source.attributes import constant_array
from graphwright.source.concrete_function import compiled_calls, from_concrete_function
from graphwright.source.graph_def import to_graph_def
from graphwright.source.private_keras import input_name, is_functional
from graphwright.source.rebuild import rebuild_concrete_function
from graphwright.source.tensorflow_import import import_keras, left_alone
from graphwright.step.flatten import stateful_op_types
from graphwright.transform.inline_calls import inline_calls

tf: Any = importlib.import_module("tensorflow")

_GRADIENT = "_gradient_op_type"


@dataclass(frozen=True, slots=True)
class KeptPart:
    """What a partially evaluated function keeps for calls with certain shapes.

    Attributes:
        values: names of the values at the frontier, as TensorFlow's graph of the function calls them.
        nbytes: bytes of these.
        compared_bytes: bytes of arguments and variables that each call compares with those that the values were computed from.
        flops: FLOPs of the function as it is written, by the rules of `gw.flops`.
        flops_saved: those of them that a call with kept values leaves out.
        how: what could not be counted, whether gradients are refused, and which operations with effects or random numbers are not kept.
    """

    values: tuple[str, ...]
    nbytes: int
    compared_bytes: int
    flops: float
    flops_saved: float
    how: str


@dataclass(frozen=True, slots=True)
class _Parts:
    """A function in two.

    Attributes:
        kept: from constant arguments to the values at the frontier; takes variables in itself.
        rest: from these values and all arguments to the results.
        constants: places of the arguments that `kept` takes.
        has_own_gradient: whether the function states gradients of its own, which the parts do not have.
    """

    kept: Any
    rest: Any
    constants: tuple[int, ...]
    pack: Callable[[Sequence[Any]], Any]
    variables: tuple[Any, ...]
    has_own_gradient: bool
    report: KeptPart


def partially_evaluated(fn: Any, *, constant: str | Sequence[str], max_bytes: int | str = "1GiB") -> PartiallyEvaluated:
    """Let a function compute what depends only on arguments that seldom change, and on variables, when one of these has changed.

    For a step that is fed a large input many times with a small one that varies: a table of candidates with queries, a mesh with loads.
    The function's graph is cut in two. What the first part hands to the second, the *frontier*, is kept by `gw.cached`: the arguments and
    variables that it was computed from are compared bit for bit at each call, so nothing is stale, whoever wrote to a variable. The cut is
    the one with the fewest bytes; what takes less to compute than to compare stays in the second part, and so do random numbers, effects,
    what waits for them, and what reads a variable that the function itself writes to. Loops and branches are kept as a whole or not at all.

    A write by another thread while a call runs may be seen by one part and not by the other. Gradients are those of the function: under a
    tape, what the backward pass needs of the first part is kept with its values. The two parts are optimized by Grappler each by itself, so
    results may differ in the last bits where it fuses other operations than in the whole. Many variables are compared faster in a graph:
    call it in a `tf.function`.

    Args:
        fn: a function of tensors, a Keras model (called as for inference), or a signature of a loaded SavedModel.
        constant: names of arguments, of keys within them, or of inputs of a functional model, that seldom change.
        max_bytes: as for `gw.cached`.

    Returns:
        A callable with the same arguments and results.

    Raises:
        ArgumentError: `fn` cannot be called; (at a call) there is no argument of that name.
        UnsupportedError: (at a call) nothing that is worth keeping depends on what is constant alone; XLA compiles a part of it; a tensor
            of a graph that is being traced is closed over; or replicas of `tf.distribute` call it. And where a gradient is taken (of a
            `tf.function`: where it is called under a tape), the function states its own (`tf.custom_gradient`; `tf.nn.silu` does).

    >>> import tensorflow as tf
    >>> encoder = tf.Variable(tf.ones((64, 16)))
    >>> def scores(table, query):
    ...     return tf.linalg.matvec(tf.tanh(table @ encoder), query)
    >>> fast, table = partially_evaluated(scores, constant="table"), tf.ones((100, 64))
    >>> for k in range(5):
    ...     y = fast(table, tf.ones(16) * k)
    >>> fast
    <PartiallyEvaluated 'scores': 1 value (6.25 KiB) is kept, 206 kFLOP of 210 kFLOP saved per call; 4 hits, 1 miss>
    """
    if not callable(fn):
        raise ArgumentError(f"{type(fn).__name__} cannot be called", argument="fn", remedy="give a function of tensors, or a model")
    return PartiallyEvaluated(fn, (constant,) if isinstance(constant, str) else tuple(constant), max_bytes)


class PartiallyEvaluated(BySignature):
    """A function of which a part is kept; made by `partially_evaluated`."""

    word = "partially evaluated"

    def __init__(self, fn: Any, constant: tuple[str, ...], max_bytes: int | str) -> None:
        super().__init__(fn)
        self._constant = constant
        self._parts: dict[Any, _Parts] = {}

        def kept(parts: _Parts, *tensors: Any) -> list[Any]:
            return listed(parts.kept(*tensors))

        self._kept = cached(left_alone(kept), max_bytes=max_bytes)

    def untraced(self) -> Self:
        """A copy that has traced nothing."""
        made = copy.copy(self)
        made._parts, made._kept = {}, self._kept.untraced()
        return made

    def __repr__(self) -> str:
        from graphwright.report.units import counted, format_bytes, format_flops

        info = self.cache_info()
        counts = f"{counted(info.hits, 'hit')}, {info.misses:,} {'miss' if info.misses == 1 else 'misses'}"
        said = [
            f"{counted(len(part.values), 'value')} ({format_bytes(part.nbytes)}) {'is' if len(part.values) == 1 else 'are'} kept, "
            f"{format_flops(part.flops_saved)} of {format_flops(part.flops)} saved per call"
            for part in self.kept_parts()
        ]
        return f"<PartiallyEvaluated {self.__name__!r}: {'; '.join([*said, counts])}>"

    def kept_parts(self) -> tuple[KeptPart, ...]:
        """What is kept, for each structure of arguments that it was called with."""
        return tuple(parts.report for parts in self._parts.values())

    def cache_info(self) -> CacheInfo:
        """Hits and misses of the part that is kept, and the bytes of its values and of the arguments that it was computed from."""
        return self._kept.cache_info()

    def cache_clear(self) -> None:
        """Forget what is kept."""
        self._kept.cache_clear()

    @left_alone
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tensors, key = self.taken_apart(args, kwargs)
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise UnsupportedError("it was called under a tf.distribute strategy", where=self._where, remedy="call it on one device")
        if key not in self._parts:
            marks = self._marks(args, kwargs)
            self._parts[key] = self._cut((args, kwargs), leaves, tensors, [marks[k] for k in tensors])
        parts = self._parts[key]

        def run(*given: Any) -> list[Any]:
            frontier = listed(self._kept(parts, *(given[k] for k in parts.constants)))
            return listed(parts.rest(*frontier, *given[: len(tensors)]))

        if not parts.has_own_gradient:
            return parts.pack(run(*tensors.values()))

        @tf.custom_gradient
        def refusing(*given: Any) -> Any:
            return run(*given), self._refuse

        return parts.pack(listed(refusing(*tensors.values(), *map(tf.convert_to_tensor, parts.variables))))

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            "a gradient was taken of a partially evaluated function that states gradients of its own",
            where=self._where,
            cause="tf.custom_gradient in it, or an operation that has one, such as tf.nn.silu",
            remedy="take gradients of the function as it is written",
        )

    @property
    def _where(self) -> str:
        return f"gw.partially_evaluated, function {self.__name__!r}"

    def _marks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
        """For each leaf of the arguments, whether it is said to be constant."""
        layer = isinstance(self.function, import_keras().layers.Layer)
        inputs = [input_name(x) for x in self.function.inputs] if layer and is_functional(self.function) else []
        try:
            parameters = list(inspect.signature(self.function.call if layer else self.function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        seen = {p.name for p in parameters if p.default is not p.empty}  # what is not given is closed over, and does not change

        def marked(value: Any, name: str, inside: bool) -> list[bool]:
            seen.add(name)
            inside = inside or name in self._constant
            if isinstance(value, Mapping):
                held = cast("Mapping[str, Any]", value)
                return [mark for key in sorted(held) for mark in marked(held[key], str(key), inside)]
            if isinstance(value, (list, tuple)):
                items = cast("Sequence[Any]", value)
                words: Sequence[str] = inputs if len(inputs) == len(items) else getattr(items, "_fields", [""] * len(items))
                return [mark for item, word in zip(items, words, strict=True) for mark in marked(item, word, inside)]
            return [inside] * len(tf.nest.flatten(value, expand_composites=True))

        places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
        places = [*places[: len(args)], *[rest] * (len(args) - len(places))]
        found = [mark for value, name in zip(args, places, strict=True) for mark in marked(value, name, False)]
        found += marked(kwargs, "", False)
        missing = [name for name in self._constant if name not in seen]
        if missing:
            raise ArgumentError(
                f"there is no argument {missing[0]!r}, but {', '.join(sorted(seen - {''})) or 'none with a name'}",
                argument="constant",
                remedy="name an argument of the function, a key within it, or an input of a functional model",
            )
        return found

    def _cut(self, structure: Any, leaves: Sequence[Any], tensors: dict[int, Any], constant: Sequence[bool]) -> _Parts:
        fill, fn = self.filled(structure, leaves, tensors), self.function
        found: list[Callable[[Sequence[Any]], Any]] = []

        @left_alone
        def results(value: Any) -> list[Any]:
            found.append(packing(value))
            return tensors_of(value)

        def whole(*given: Any) -> list[Any]:
            args, kwargs = fill(given)
            return results(values_of(fn(*args, **kwargs)))

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors.values()]
        with functions_as_written():
            concrete = tf.function(whole).get_concrete_function(*specs)
        return _in_two(concrete, constant, found[-1], self._where, self.__name__)


def _in_two(concrete: Any, constant: Sequence[bool], pack: Callable[[Sequence[Any]], Any], where: str, name: str) -> _Parts:
    graph, binding = from_concrete_function(concrete, planned=False)
    if compiled_calls(graph):
        raise UnsupportedError("a function that XLA compiles is inside", where=where, remedy="use jit_compile=False inside")
    types = stateful_op_types(graph)
    inline_calls(graph, Purity(graph, types), strict=False)
    given, captured = graph.inputs[: binding.argument_count], graph.inputs[binding.argument_count :]
    externals = dict(zip(captured, binding.captures, strict=True))
    if any(not callable(external) and tf.is_symbolic_tensor(external) for external in externals.values()):
        raise UnsupportedError("it closes over a tensor of a graph that is being traced", where=where, remedy="give it as an argument")
    own = [node for body in bodies(graph) for node in body.nodes if _GRADIENT in node.attrs and node.op_type not in CALL_TYPES]
    for node in own:
        node.graph.set_attr(node, _GRADIENT, None)
    resources = {value: value.name for value in captured if value.dtype.name == "resource"}
    written = {access.key for access in find_accesses(graph, resources) if access.writes}
    sources = {value.producer: value.nbytes or 0 for value, is_constant in zip(given, constant, strict=True) if is_constant}
    for value, external in externals.items():
        variable = graph.variables.get(value)
        if variable is not None and value.name not in written:
            sources[value.producer] = byte_count(variable.dtype, variable.shape) or 0
        elif value.dtype.name not in ("resource", "variant") and not callable(external):
            sources[value.producer] = value.nbytes or 0
    purity = Purity(graph, types)
    unchanging = find_unchanging(graph, sources, purity)
    execution = execute(graph, constant_array)
    flops = {node: sum(times * (node_flops(n) or 0.0) for n, times in runs.items()) for node, runs in execution.times.items()}
    frontier = find_frontier(graph, sources, unchanging, flops)
    if not frontier:
        raise UnsupportedError(
            "nothing that is worth keeping depends only on what is constant",
            where=where,
            cause=_why_nothing(graph, unchanging, purity, flops),
            remedy="let the function compute what it makes of the constant arguments before it mixes in others",
        )
    before = backward_reachable([*(value.producer for value in graph.outputs), *graph.control_outputs])
    inside = backward_reachable(value.producer for value in frontier)
    kept = _rebuilt(graph, inside, [v for v in given if v.producer in inside], externals, frontier, [], f"{name}_kept")
    used = [node for node in sources if node in inside]
    names = tuple(value.name for value in frontier)
    stands: dict[Value, Value] = {}
    for k, value in enumerate(frontier):
        stands[value] = add_placeholder(graph, f"kept_{k}", value.dtype, value.shape)
    outputs = [stands.get(value, value) for value in graph.outputs]
    graph.replace_many_uses(stands)
    for node in graph.nodes:
        for earlier in list(node.control_inputs):
            if earlier in unchanging:
                graph.remove_control_input(node, earlier)
    after = backward_reachable([*(value.producer for value in outputs), *graph.control_outputs])
    rest = _rebuilt(graph, after, [*stands.values(), *given], externals, outputs, graph.control_outputs, f"{name}_rest")
    for part in (kept, rest):  # tapes watch them; a variable that a part does not read would make what is kept stale
        handles = {id(handle) for handle in part.captured_inputs}
        part.graph.variables = tuple(v for v in concrete.graph.variables if id(v.handle) in handles)
    whole = sum(flops.get(node, 0.0) for node in before)
    unknown = sorted({node.op_type for node in before for n in execution.times.get(node, {}) if node_flops(n) is None})
    effects = [_effect(graph, node, purity) for node in impure_nodes(graph, purity) if node in before]
    report = KeptPart(
        names,
        sum(value.nbytes or 0 for value in frontier),
        sum(sources[node] for node in used),
        whole,
        whole - sum(flops.get(node, 0.0) for node in after),
        "FLOPs by rules"
        + (f", without {', '.join(unknown)}" if unknown else "")
        + ("; gradients are refused" if own else "")
        + (f"; runs at each call, with what depends on it: {'; '.join(effects[:3])}" if effects else ""),
    )
    constants = tuple(k for k, value in enumerate(given) if value.producer in inside)
    variables = tuple(v for v in concrete.graph.variables if v.dtype.is_floating) if own else ()
    return _Parts(kept, rest, constants, pack, variables, bool(own), report)


def _rebuilt(
    graph: Graph,
    nodes: set[Node],
    inputs: Sequence[Value],
    externals: Mapping[Value, Any],
    outputs: Sequence[Value],
    effects: Sequence[Node],
    name: str,
) -> Any:
    captures = [(external, value.name) for value, external in externals.items() if value.producer in nodes]
    kept = nodes | {value.producer for value in inputs}
    return rebuild_concrete_function(
        to_graph_def(graph, keep=lambda node: node in kept),
        inputs=[value.name for value in inputs],
        captures=captures,
        outputs=[value.name for value in outputs],
        control_outputs=[node.name for node in effects],
        name=name,
    )


def _why_nothing(graph: Graph, unchanging: set[Node], purity: Purity, flops: Mapping[Node, float]) -> str:
    """Why no part is worth keeping: the first operation that reads a source and something that changes, and what that is."""
    done = sum(flops.get(node, 0.0) for node in unchanging)
    if done:
        return f"what depends on it alone takes less to compute than to compare: {done:,.0f} FLOPs"
    order = topological_order(graph)
    for node in order:
        mixes = node not in unchanging and node.op_type not in READS_OF_VARIABLES
        if not mixes or all(v.producer not in unchanging or is_constant(v.producer) for v in node.inputs):
            continue
        changing = backward_reachable([node]) - unchanging
        first = next(other for other in order if other in changing)
        if first.op_type in PLACEHOLDERS:
            variable = first.outputs[0].dtype.name == "resource"
            return f"{node.op_type} {node.name!r} reads " + (
                "a variable or a table that the function changes" if variable else "an argument that is not constant"
            )
        effect = _effect(graph, first, purity)
        return f"{node.op_type} {node.name!r} reads {effect}" if first is not node else effect
    return "nothing is computed of it"


def _effect(graph: Graph, node: Node, purity: Purity) -> str:
    culprit = culprit_in(graph, node, purity)
    return f"{culprit.op_type} {culprit.name!r}, which {does(culprit)}"
