"""`infer_shapes`: the shape of every value, with its dimensions explained."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from graphwright.analyze.dimension_fit import Bindings, Dimension, fit_dimension
from graphwright.analyze.unknown_shapes import blame_unknown_shapes, reason_of
from graphwright.errors import ArgumentError, ErrorCode, GraphwrightError, UnknownShapeError
from graphwright.ir.dtypes import Shape, agree, format_shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import MAY_BE_FED
from graphwright.ir.walk import backward_reachable
from graphwright.report.shape_report import ShapeReport, UnknownCause, ValueShape
from graphwright.source.graph_def import from_graph_def, to_graph_def
from graphwright.source.load import load, made_by
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.feeds import check_known, declared_shape, is_nested, is_value, leaves_of, map_feeds, resized
from graphwright.step.fetches import fetch, is_graph
from graphwright.step.flatten import counted_graph, flatten_graph
from graphwright.step.keras_inputs import declared_inputs, inputs_fed
from graphwright.step.keras_step import is_keras_model
from graphwright.step.targets import Feed, Mode, about_a_step, declared_shapes, read_target, trace

BATCH = "batch"
_BATCH_SIZES = (3, 5, 8, 7)
# Of other dimensions: large enough for windows to fit. Odd ones tell how strides round; some models take multiples only, and some short
# sequences only.
_OTHER_SIZES = ((64, 75, 97, 130), (64, 96, 160, 224), (128, 256, 512, 384), (8, 11, 14, 10))
# Inputs whose axes may share a size, by a part of their names: none, the same first word, all.
_TOGETHER: tuple[Callable[[str], str], ...] = (str, lambda name: re.split(r"[\W_]", name)[0], lambda _: "")
_Shapes = Mapping[str, Shape]


@about_a_step
def infer_shapes(
    target: Any, feeds: Mapping[str, Feed] | None = None, *, outputs: Iterable[Any] | Any = None, mode: Mode = "auto"
) -> ShapeReport:
    """Infer the shape of every value of a step: static, an expression of the free dimensions of its inputs, or unknown, and why.

    The step is bound to several sizes of each free dimension. Each dimension is fitted to an expression, which is checked at sizes that
    differ in all free dimensions.

    Args:
        feeds: shape, or `tf.TensorSpec`, by argument name, None for a free dimension. By default the dimensions that the target leaves open
            are free.
        outputs: of a graph, the values of interest: names, tensors or operations; by default all.

    Returns:
        A `ShapeReport`, which prints itself. First dimensions are taken as one batch size, other free dimensions as independent; if that
        does not fit, as equal per axis of inputs whose names begin with the same word, such as `encoder`; or else per axis.

    Raises:
        ArgumentError: the feeds do not fit, or the target cannot be read.
        UnknownShapeError: the number of dimensions of an input is unknown, or no sizes were found that the step takes.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: (tf.reshape(x, [-1, 4]), tf.where(x > 0)))
    >>> report = infer_shapes(step, {"x": (None, 8)})
    >>> [str(value) for value in report.outputs], report.causes[0].op_type
    (['[2*batch, 4]', '[?, 2]'], 'Where')
    """
    bound = _Bound(target, feeds or {}, outputs, mode)
    failure: GraphwrightError | None = None
    for free in (tried := _free(bound.shapes)):
        for sizes in _OTHER_SIZES if any(symbol != BATCH for symbol in free) else _OTHER_SIZES[:1]:
            bindings = _bindings(tuple(free), sizes)
            try:
                graphs = [bound.at(_sized(bound.shapes, free, binding)) for binding in bindings.all()]
            except GraphwrightError as error:
                failure = failure or error
            else:
                return _report(bound, free, bindings, graphs)
    assert failure is not None
    if tried[-1]:
        failure.places += (f"with sizes that were tried for {', '.join(tried[-1])}",)
    raise failure


class _Bound:
    """A target, and the shapes of its inputs with the feeds."""

    def __init__(self, target: Any, feeds: Mapping[str, Feed], outputs: Any, mode: Mode) -> None:
        self.mode: Mode = mode
        target = made_by(target)
        self.is_graph = is_graph(target) or outputs is not None
        self.name = ""
        if self.is_graph:
            graph = load(target)
            self.graph_def = to_graph_def(graph)
            self.name = graph.name or "graph"
            self.outputs = _outputs_of(graph, outputs)
            known = _placeholders(graph, self.outputs)
            self.shapes: dict[str, Shape] = known | _given(feeds, known)
        else:
            self.target = read_target(target)
            self.feeds = feeds
            self.shapes = _declared(self.target, feeds)
        for name, shape in self.shapes.items():
            if shape is None:
                raise UnknownShapeError(
                    f"not even the number of dimensions of {name!r} is known",
                    argument="feeds",
                    item=name,
                    remedy=f"give its shape, None for free dimensions: feeds={{{name!r}: (None, ...)}}",
                    code=ErrorCode.OPEN_INPUT,
                )
            if any(d is not None and (isinstance(d, bool) or not isinstance(d, int) or d < 0) for d in shape):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ArgumentError(
                    f"the feed {shape} is not a shape",
                    argument="feeds",
                    item=name,
                    remedy="give whole numbers, and None for free dimensions",
                )

    def at(self, shapes: _Shapes) -> tuple[Graph, dict[str, Shape]]:
        if self.is_graph:
            graph = from_graph_def(self.graph_def, name=self.name)
            graph.outputs = [graph.value(name) for name in self.outputs]
            graph.inputs = [graph[name].outputs[0] for name in self.shapes]
            positions = {k: shapes[v.producer.name] for k, v in enumerate(graph.inputs)}
            flat, _ = flatten_graph(graph, {k: s for k, s in positions.items() if s is not None}, infer=True, fold_floats=False)
            return flat, dict(shapes)
        structures = {key: feed for key, feed in self.feeds.items() if is_nested(feed) or is_value(feed)}
        feeds = {name: resized(self.feeds.get(name), shape) for name, shape in shapes.items() if name not in leaves_of(structures)}
        feeds |= map_feeds(lambda path, feed: resized(feed, shapes[path]) if path in shapes else feed, structures)
        traced = trace(self.target, feeds=feeds or None, mode=self.mode)
        self.name = traced.name
        return counted_graph(traced)[0], dict(traced.feeds)


def _given(feeds: Mapping[str, Feed], known: _Shapes) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for key, feed in leaves_of(feeds).items():
        if is_value(feed):
            continue
        name = key.removesuffix(":0")
        if known:
            check_known([key], known, "the target has")
        shapes[name] = declared_shape(key, feed)
        if not agree(shapes[name], known.get(name)):
            raise ArgumentError(f"the feed {shapes[name]} does not fit {format_shape(known[name])}", argument="feeds", item=key)
    return shapes


def _declared(target: Any, feeds: Mapping[str, Feed]) -> dict[str, Shape]:
    if not is_keras_model(target):
        fed_shapes = _given(feeds, {})
        declared = declared_shapes(target, feeds)
        return declared | _given(feeds, declared) if declared.keys() >= fed_shapes.keys() else declared
    structure = declared_inputs(target, feeds)
    specs: list[Any] = import_tensorflow().nest.flatten(structure)
    free = {None} if getattr(target, "inputs", None) else {None, *(spec.shape[0] for spec in specs if spec.shape.rank)}
    known: dict[str, Shape] = {spec.name: tuple(None if not k and d in free else d for k, d in enumerate(spec.shape)) for spec in specs}
    fed = inputs_fed(target, structure, feeds)  # by its name, besides the words that stand for all of them
    return known | _given({name: feed for name, feed in fed.items() if name.removesuffix(":0") in (*known, "y")}, known | {"y": None})


def _outputs_of(graph: Graph, outputs: Any) -> list[str]:
    if outputs is not None:
        return [value.name for value in fetch(graph, outputs, whole=True)[0]]
    return [v.name for v in graph.outputs] or [v.name for node in graph.nodes for v in node.outputs if not v.uses]


def _placeholders(graph: Graph, outputs: Iterable[str]) -> dict[str, Shape]:
    needed = backward_reachable([graph.value(name).producer for name in outputs])
    return {
        node.name: node.outputs[0].shape
        for node in graph.nodes
        if node in needed and node.op_type in MAY_BE_FED and node.outputs[0].dtype.itemsize is not None
    }


def _free(shapes: _Shapes) -> list[dict[str, tuple[str, ...]]]:
    """Return the places of each symbol, for each way to share sizes: none, inputs with names that begin alike, all of an axis."""
    ways: list[dict[str, tuple[str, ...]]] = []
    for together in _TOGETHER:
        found: dict[str, list[str]] = {}
        first: dict[tuple[str, int], str] = {}
        for name, shape in shapes.items():
            for axis, size in enumerate(shape or ()):
                if size is None:
                    place = f"{name}[{axis}]"
                    symbol = BATCH if axis == 0 else first.setdefault((together(name), axis), place)
                    found.setdefault(symbol, []).append(place)
        way = {symbol: tuple(places) for symbol, places in found.items()}
        ways += [way] if way not in ways else []
    return ways


def _bindings(symbols: tuple[str, ...], other: tuple[int, int, int, int]) -> Bindings:
    # Symbols get sizes that differ from each other, which tells a product from a square.
    step = 32 if min(other) >= 64 else 1
    sizes = {symbol: _BATCH_SIZES if symbol == BATCH else tuple(size + step * k for size in other) for k, symbol in enumerate(symbols)}
    return Bindings(symbols, {s: (a, b, c) for s, (a, b, c, _) in sizes.items()}, {s: d for s, (*_, d) in sizes.items()})


def _sized(shapes: _Shapes, free: Mapping[str, tuple[str, ...]], binding: Mapping[str, int]) -> dict[str, Shape]:
    size_of = {place: binding[symbol] for symbol, places in free.items() for place in places}
    return {
        name: tuple(size_of.get(f"{name}[{axis}]", size) if size is None else size for axis, size in enumerate(shape or ()))
        for name, shape in shapes.items()
    }


def _report(
    bound: _Bound, free: Mapping[str, tuple[str, ...]], bindings: Bindings, graphs: list[tuple[Graph, dict[str, Shape]]]
) -> ShapeReport:
    graph = graphs[0][0]
    for value, exact in chain.from_iterable(flat.at_most.items() for flat, _ in graphs):
        value.shape = exact  # not the largest that it can have
    others = [{v.name: v for node in flat.nodes for v in node.outputs} for flat, _ in graphs[1:]]
    values: dict[str, ValueShape] = {}
    missing = 0
    for node in graph.nodes:
        for value in node.outputs:
            if value.dtype.itemsize is None:
                continue
            same = [found[value.name] for found in others if value.name in found]
            missing += len(same) < len(others)
            if len(same) == len(others):
                dims = _dims([v.shape for v in (value, *same)], bindings)
                values[value.name] = ValueShape(value.name, node.op_type, str(value.dtype), dims)
    how = {"shapes": _how(free, bindings)}
    if missing:
        how["left out"] = f"{missing:,} values that the graph has at some sizes only"
    blamed = {value: node for value, node in blame_unknown_shapes(graph).items() if value.name in values}
    return ShapeReport(
        name=bound.name,
        inputs=_inputs(graphs, values, bindings),
        free=free,
        outputs=tuple(values[v.name] for v in graph.outputs if v.name in values),
        values=tuple(values.values()),
        causes=_causes(blamed),
        how=how,
    )


def _dims(shapes: list[Shape], bindings: Bindings) -> tuple[Dimension, ...] | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None
    return tuple(fit_dimension(dims, bindings) for dims in zip(*known, strict=True))


def _inputs(graphs: list[tuple[Graph, dict[str, Shape]]], values: Mapping[str, ValueShape], bindings: Bindings) -> dict[str, ValueShape]:
    first = graphs[0][1]
    dtypes = {v.producer.name: str(v.dtype) for v in graphs[0][0].inputs}
    return {
        name: values.get(f"{name}:0")
        or ValueShape(f"{name}:0", "Placeholder", dtypes.get(name, ""), _dims([shapes[name] for _, shapes in graphs], bindings))
        for name in first
    }


def _causes(blamed: Mapping[Value, Node]) -> tuple[UnknownCause, ...]:
    found: dict[Node, list[str]] = {}
    for value, node in blamed.items():
        found.setdefault(node, []).append(value.name)
    causes = [UnknownCause(node.name, node.op_type, reason_of(node), tuple(names)) for node, names in found.items()]
    return tuple(sorted(causes, key=lambda cause: -len(cause.values)))


def _how(free: Mapping[str, tuple[str, ...]], bindings: Bindings) -> str:
    if not free:
        return "TensorFlow's shape inference on the graph without calls, its constants folded; no dimension of the inputs is free"
    tried = ", ".join(f"{symbol} = {', '.join(map(str, bindings.sizes[symbol]))}" for symbol in free)
    checked = ", ".join(f"{symbol} = {bindings.checked[symbol]}" for symbol in free)
    text = f"TensorFlow's shape inference on the graph without calls, with {tried}; expressions are checked at {checked}"
    return f"{text}; first dimensions are taken for one batch size" if len(free.get(BATCH, ())) > 1 else text
