"""A rewrite rule by example: one function of tensors shows what to find, another one what replaces it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from graphwright.errors import ArgumentError, first_line
from graphwright.ir.dtypes import DTYPES, DType, Shape, as_dtype, as_shape, common_shape
from graphwright.ir.graph import Graph, Value
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE, MATRIX_PRODUCTS
from graphwright.ir.traits.values import is_constant, origin
from graphwright.source.op_types import is_stateful
from graphwright.source.registry_rule import default_attributes
from graphwright.source.trace_rule import trace_side
from graphwright.transform.match import Captured, Match, Pattern
from graphwright.transform.rewrite import GraphRule

_TRIED_DTYPES = ("float32", "int32", "bool", "complex64", "string")
_MOST_TRIES = 125
_RANKS = range(6)


@dataclass(frozen=True)
class Rule:
    """A pattern for `rewrite` to find, and its replacement.

    TensorFlow traces both sides like a `tf.function`. Parameters of `pattern` are *captured*: each matches any tensor of any dtype. If
    `pattern` depends on ranks (`tf.reduce_mean(x)` and `x @ w` do), it is traced for ranks 0 to 5, the same for all parameters, and then
    for the ranks of each match. `replacement` is traced once per combination of dtypes, and of static shapes if it needs them.

    Args:
        pattern: a function of tensors; returns a tensor, or a nest of several, which are all replaced.
        replacement: a function of the same parameters by name, or some of them; returns as many tensors. A parameter `match` receives
            the match.
        condition: a function of the match; a false result rejects it. `match.x` is the value that parameter `x` captured: its static
            `shape`, its `dtype` by name, and its `constant`, an array if it is a constant.
        name: in reports; by default the name of the replacement.
        specs: by parameter, a `tf.TensorSpec` (dtype and shape), a dtype, or a shape that it must have.
        choices: values of keyword parameters of `pattern` (and of `replacement`): one pattern is made per combination.
        keep_shared: also match if nodes outside read intermediate values; the nodes that make these values stay.
        effects: whether `pattern` may contain operations with effects or random operations, which are then removed.

    Raises:
        ArgumentError: a side is not a function, or parameters do not correspond; when it is used: it cannot be traced.

    >>> import tensorflow as tf
    >>> Rule(lambda x, y: x + -y, lambda x, y: x - y, name="subtract")
    Rule('subtract', x, y)
    >>> Rule(lambda x, y: x + y, lambda z: z)
    Traceback (most recent call last):
        ...
    graphwright.errors.ArgumentError: the replacement takes 'z', which the pattern does not capture
      where: argument 'replacement'
      remedy: the pattern captures x, y
    """

    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    condition: Callable[[Match], Any] | None = None
    name: str = ""
    specs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    keep_shared: bool = False
    effects: bool = False

    def __post_init__(self) -> None:
        for role in ("pattern", "replacement"):
            if not callable(getattr(self, role)):
                raise ArgumentError(f"{getattr(self, role)!r} is no function", argument=role, remedy="give a function of tensors")
        captured = self.captured
        if not captured:
            raise ArgumentError("the pattern captures nothing", argument="pattern", remedy="give it a parameter per tensor that it reads")
        for parameter in _parameters(self.pattern):
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty and parameter.name not in self.choices:
                name = repr(parameter.name)
                raise ArgumentError(f"{name} has no choices", argument="choices", remedy=f"choices={{{name}: [...]}}")
        for name in (p.name for p in _parameters(self.replacement) if p.default is p.empty):
            if name not in captured and name not in self.choices and name != "match":
                raise ArgumentError(
                    f"the replacement takes {name!r}, which the pattern does not capture",
                    argument="replacement",
                    remedy=f"the pattern captures {', '.join(captured)}",
                )
        for name in self.specs:
            if name not in captured:
                raise ArgumentError(f"the pattern captures no {name!r}", argument="specs", remedy=f"it captures {', '.join(captured)}")

    @property
    def captured(self) -> tuple[str, ...]:
        """The names of the captured parameters, in order."""
        return tuple(p.name for p in _parameters(self.pattern) if p.kind is p.POSITIONAL_OR_KEYWORD)

    @property
    def title(self) -> str:
        """The name, or the name of the replacement."""
        own = getattr(self.replacement, "__name__", "")
        return self.name or (own if own.isidentifier() else "rule")

    def __repr__(self) -> str:
        return f"Rule({self.title!r}, {', '.join((*self.captured, *self.choices))})"

    def on_graphs(self) -> GraphRule:
        """Return the rule on graphs, with its pattern traced."""
        return _TracedRule(self).on_graphs()


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    return inspect.signature(function).parameters.values()


@dataclass(frozen=True)
class _Trace:
    """How a pattern was traced: the values of its keyword parameters, the shapes of its parameters, and whether it depends on ranks."""

    chosen: Mapping[str, Any]
    shapes: tuple[Shape, ...]
    is_ranked: bool


class _TracedRule:
    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        specs = [_spec(rule.specs.get(name), name) for name in rule.captured]
        self._dtypes = [dtype for dtype, _ in specs]
        self._shapes = tuple(shape for _, shape in specs)
        self._traces: dict[Pattern, _Trace] = {}
        self._typed_patterns: dict[object, Pattern | None] = {}  # None: the pattern cannot be traced for these dtypes
        self._replacements: dict[object, Graph | None] = {}  # None: there is none for all shapes
        self._parameters = {p.name for p in _parameters(rule.replacement)}
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in _parameters(rule.replacement))

    def on_graphs(self) -> GraphRule:
        rule = self._rule
        patterns = [
            pattern
            for values in product(*rule.choices.values())
            for pattern in self._patterns(dict(zip(rule.choices, values, strict=True)))
        ]
        return GraphRule(rule.title, patterns, self._replacement, self._typed, rule.keep_shared, rule.effects)

    def _patterns(self, chosen: Mapping[str, Any]) -> list[Pattern]:
        """Return one pattern for all shapes, or one per rank if the pattern depends on ranks."""
        has_open_shape = None in self._shapes
        patterns: dict[str, Pattern] = {}
        first: ArgumentError | None = None
        for rank in (None, *_RANKS):
            shapes = tuple(shape if shape is not None or rank is None else (None,) * rank for shape in self._shapes)
            try:
                pattern = self._pattern_of_any_dtype(_Trace(chosen, shapes, rank is not None))
            except ArgumentError as error:
                first = first or error
                if not has_open_shape:
                    break
                continue
            if rank is None:
                if not (has_open_shape and _depends_on_rank(pattern.graph)):
                    return [pattern]
                self._traces[pattern] = _Trace(chosen, shapes, True)
            patterns.setdefault(_description(pattern), pattern)
        if first is not None and not patterns:
            raise first
        return list(patterns.values())

    def _pattern_of_any_dtype(self, trace: _Trace) -> Pattern:
        options = [_TRIED_DTYPES if dtype is None else (dtype.name,) for dtype in self._dtypes]
        first: ArgumentError | None = None
        for _, names in zip(range(_MOST_TRIES), _similar_first(options), strict=False):
            try:
                return self._pattern(tuple(DTYPES[name] for name in names), trace)
            except ArgumentError as error:
                first = first or error
        raise first or ArgumentError("the pattern cannot be traced", where=f"rule {self._rule.title!r}")

    def _pattern(self, dtypes: tuple[DType, ...], trace: _Trace) -> Pattern:
        rule = self._rule
        arguments = {name: (dtype, shape) for name, dtype, shape in zip(rule.captured, dtypes, trace.shapes, strict=True)}
        graph = trace_side(rule.pattern, arguments, _accepted(rule.pattern, trace.chosen), f"pattern of rule {rule.title!r}")
        pattern = Pattern(graph, rule.captured, default_attributes)
        impure = next((node for node in pattern.nodes if is_stateful(node.op_type) is not False), None)
        if impure is not None and not rule.effects:
            raise ArgumentError(
                f"the pattern holds a {impure.op_type}, which has effects, is random, or reads what may change",
                where=f"rule {rule.title!r}",
                remedy="allow this with effects=True",
            )
        self._traces[pattern] = trace
        return pattern

    def _typed(self, pattern: Pattern, captured: tuple[Value, ...]) -> Pattern | None:
        """Return the pattern traced for the dtypes and ranks of captured values, or None."""
        trace = self._traces[pattern]
        dtypes = tuple([value.dtype for value in captured])
        shapes = trace.shapes
        if trace.is_ranked:
            pairs = zip(self._shapes, (Captured(value).shape for value in captured), strict=True)
            shapes = tuple(wanted if wanted is not None or shape is None else (None,) * len(shape) for wanted, shape in pairs)
        if pattern.dtypes == dtypes and shapes == trace.shapes:
            return pattern
        if any(wanted is not None and wanted != dtype for wanted, dtype in zip(self._dtypes, dtypes, strict=True)):
            return None
        key = pattern, dtypes, shapes
        if key not in self._typed_patterns:
            try:
                self._typed_patterns[key] = self._pattern(dtypes, _Trace(trace.chosen, shapes, trace.is_ranked))
            except ArgumentError:
                self._typed_patterns[key] = None
        return self._typed_patterns[key]

    def _replacement(self, match: Match) -> Graph | None:
        rule = self._rule
        for wanted, captured in zip(self._shapes, match.values(), strict=True):
            if wanted is not None and ((shape := captured.shape) is None or common_shape(wanted, shape) != wanted):
                return None
        if rule.condition is not None:
            try:
                fits = rule.condition(match)
            except Exception as error:  # the user's function raises anything
                raise ArgumentError(
                    f"the condition of rule {rule.title!r} raises {type(error).__name__}: {first_line(error)}",
                    where=f"node {match.replaced[0].producer.name!r}",
                    cause="a shape or a constant may be None, where it is not known",
                ) from error
            if not fits:
                return None
        exact = tuple(captured.shape for captured in match.values())
        if "match" in self._parameters:
            return self._traced_replacement(match, exact)
        general = self._general_replacement(match)
        return general if general is not None else self._exact_replacement(match, exact)

    def _general_replacement(self, match: Match) -> Graph | None:
        """Return the replacement for all shapes, or None if it depends on shapes."""
        if match.pattern not in self._replacements:
            try:
                graph = self._traced_replacement(match, self._traces[match.pattern].shapes)
                self._replacements[match.pattern] = None if _asks_for_shape(graph) else graph
            except ArgumentError:
                self._replacements[match.pattern] = None
        return self._replacements[match.pattern]

    def _exact_replacement(self, match: Match, shapes: tuple[Shape, ...]) -> Graph:
        key = match.pattern, shapes
        graph = self._replacements.get(key)
        if graph is None:
            graph = self._replacements[key] = self._traced_replacement(match, shapes)
        return graph

    def _traced_replacement(self, match: Match, shapes: tuple[Shape, ...]) -> Graph:
        rule, function = self._rule, self._rule.replacement
        arguments = {name: (v.dtype, shape) for name, v, shape in zip(rule.captured, match.captured, shapes, strict=True)}
        if not self._takes_all:
            function = _ignoring(function, arguments.keys() - self._parameters)
        others = _accepted(rule.replacement, {**self._traces[match.pattern].chosen, "match": match})
        return trace_side(function, arguments, others, f"replacement of rule {rule.title!r}")


def _ignoring(function: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    ignored = frozenset(names)

    def call(**arguments: Any) -> Any:
        return function(**{name: value for name, value in arguments.items() if name not in ignored})

    return call if ignored else function


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = {p.name for p in _parameters(function)}
    return {name: value for name, value in arguments.items() if name in names}


def _similar_first(options: Sequence[Sequence[str]]) -> Iterable[tuple[str, ...]]:
    order = {name: place for place, name in enumerate(_TRIED_DTYPES)}
    return sorted(product(*options), key=lambda names: (len(set(names)), [order.get(name, 0) for name in names]))


def _depends_on_rank(graph: Graph) -> bool:
    return _asks_for_shape(graph) or any(node.op_type in MATRIX_PRODUCTS for node in graph)


def _description(pattern: Pattern) -> str:
    constants = (v.producer for node in pattern.nodes for v in node.inputs if is_constant(v.producer))
    return "\n".join(f"{node!r} {dict(node.attrs)}" for node in (*pattern.nodes, *constants))


def _asks_for_shape(graph: Graph) -> bool:
    return any(node.op_type in ASKS_FOR_SHAPE and origin(node.inputs[0]) in graph.inputs for node in graph)


def _spec(spec: Any, name: str) -> tuple[DType | None, Shape]:
    if spec is None:
        return None, None
    try:
        if hasattr(spec, "shape") and hasattr(spec, "dtype"):
            return as_dtype(spec.dtype), as_shape(spec.shape)
        return (None, as_shape(spec)) if isinstance(spec, list | tuple) or hasattr(spec, "rank") else (as_dtype(spec), None)
    except ArgumentError as error:
        message = f"{spec!r} says neither dtype nor shape"
        raise ArgumentError(message, argument="specs", item=name, remedy="give a tf.TensorSpec") from error
