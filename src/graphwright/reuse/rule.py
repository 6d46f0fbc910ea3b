"""A rewrite rule by example: two functions of tensors, one that shows what is looked for, and one that shows what takes its place."""

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

_GUESSES = ("float32", "int32", "bool", "complex64", "string")
_MOST_GUESSES = 125
_RANKS = range(6)


@dataclass(frozen=True)
class Rule:
    """What `rewrite` looks for, and what it puts there.

    Both sides are traced by TensorFlow as a `tf.function` is. Parameters of `pattern` are what it *captures*: each stands for any
    tensor of any dtype. Where `pattern` depends on ranks (`tf.reduce_mean(x)` does, and `x @ w`), it is traced for ranks 0 to 5, the
    same for all parameters, and then for those of what it finds. `replacement` is traced for each combination of dtypes that it is
    needed for, and, where it asks for shapes or cannot be traced without them, of static shapes.

    Args:
        pattern: a function of tensors; returns a tensor, or a nest of several, which are all replaced.
        replacement: a function of the same parameters by name, or some of them; returns as many tensors. Where it has a parameter
            `match`, it gets the match too.
        condition: a function of the match, which says whether it counts. `match.x` is what stands for parameter `x`: its static
            `shape`, its `dtype` by name, and its value as `constant`, an array, where it is a constant.
        name: in reports; by default that of the replacement.
        specs: by parameter, a `tf.TensorSpec` (dtype and shape), a dtype, or a shape, where not any tensor is meant.
        choices: values of keyword parameters of `pattern` (and of `replacement`): a pattern is made for each combination of them.
        keep_shared: whether a match counts too of which something else reads a value in between; what makes it stays then.
        effects: whether `pattern` may hold what has effects or is random, which then goes.

    Raises:
        ArgumentError: a side is no function, or parameters do not fit each other; when it is used, what cannot be traced.

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
        known = self.captured
        if not known:
            raise ArgumentError("the pattern captures nothing", argument="pattern", remedy="give it a parameter per tensor that it reads")
        keywords = [p.name for p in _parameters(self.pattern) if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
        open_ones = [name for name in keywords if name not in self.choices]
        if open_ones:
            name = open_ones[0]
            raise ArgumentError(f"nothing says what {name!r} can be", argument="choices", remedy=f"choices={{{name!r}: [...]}}")
        for name in (p.name for p in _parameters(self.replacement) if p.default is p.empty):
            if name not in known and name not in self.choices and name != "match":
                raise ArgumentError(
                    f"the replacement takes {name!r}, which the pattern does not capture",
                    argument="replacement",
                    remedy=f"the pattern captures {', '.join(known)}",
                )
        for name in self.specs:
            if name not in known:
                raise ArgumentError(f"the pattern captures no {name!r}", argument="specs", remedy=f"it captures {', '.join(known)}")

    @property
    def captured(self) -> tuple[str, ...]:
        """The names of what is captured, in their order."""
        return tuple(p.name for p in _parameters(self.pattern) if p.kind is p.POSITIONAL_OR_KEYWORD)

    @property
    def title(self) -> str:
        """The name, or that of the replacement."""
        own = getattr(self.replacement, "__name__", "")
        return self.name or (own if own.isidentifier() else "rule")

    def __repr__(self) -> str:
        return f"Rule({self.title!r}, {', '.join((*self.captured, *self.choices))})"

    def on_graphs(self) -> GraphRule:
        """The rule on graphs, its pattern traced.

        Raises:
            ArgumentError: it cannot be traced, or holds what has effects.
            GraphError: it is no pattern; see `transform.match.Pattern`.
        """
        return _Traced(self).rule()


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    return inspect.signature(function).parameters.values()


class _Traced:
    """A rule whose sides are traced when they are needed, once for each combination of dtypes, shapes and choices."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._specs = [_spec(rule.specs.get(name), name) for name in rule.captured]
        self._known: dict[object, Pattern | None] = {}
        self._made: dict[object, Graph] = {}
        self._for_all: dict[object, Graph | None] = {}  # None: not one for all shapes
        parameters = list(_parameters(rule.replacement))
        self._needed = {p.name for p in parameters}
        self._takes_match = "match" in self._needed
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._chosen: dict[int, Mapping[str, Any]] = {}  # by pattern, what it was made for
        self._shapes: dict[int, tuple[Shape, ...]] = {}
        self._ranked: set[int] = set()  # patterns that depend on ranks

    def rule(self) -> GraphRule:
        rule = self._rule
        patterns = [
            pattern
            for values in product(*rule.choices.values())
            for pattern in self._patterns(dict(zip(rule.choices, values, strict=True)))
        ]
        return GraphRule(rule.title, patterns, self._replacement, self._typed, rule.keep_shared, rule.effects)

    def _patterns(self, chosen: Mapping[str, Any]) -> list[Pattern]:
        """For all shapes, and where the pattern depends on ranks, for each rank."""
        stated = tuple(shape for _, shape in self._specs)
        found: dict[str, Pattern] = {}
        first: ArgumentError | None = None
        for rank in (None, *_RANKS):
            try:
                pattern = self._guessed(tuple(shape if shape is not None or rank is None else (None,) * rank for shape in stated), chosen)
            except ArgumentError as error:
                first = first or error
                if None not in stated:
                    break
                continue
            if rank is None and not (None in stated and _depends_on_rank(pattern.graph)):
                return [pattern]
            if found.setdefault(_structure(pattern), pattern) is pattern:
                self._ranked.add(id(pattern))
        if first is not None and not found:
            raise first
        return list(found.values())

    def _guessed(self, shapes: tuple[Shape, ...], chosen: Mapping[str, Any]) -> Pattern:
        """The pattern for the first dtypes with which it can be traced."""
        guesses = [_GUESSES if dtype is None else (dtype.name,) for dtype, _ in self._specs]
        first: ArgumentError | None = None
        for _, names in zip(range(_MOST_GUESSES), _alike_first(guesses), strict=False):
            try:
                return self._traced(tuple(DTYPES[name] for name in names), shapes, chosen)
            except ArgumentError as error:
                first = first or error
        raise first or ArgumentError("the pattern cannot be traced", where=f"rule {self._rule.title!r}")

    def _traced(self, dtypes: tuple[DType, ...], shapes: tuple[Shape, ...], chosen: Mapping[str, Any]) -> Pattern:
        rule = self._rule
        arguments = {name: (dtype, shape) for name, dtype, shape in zip(rule.captured, dtypes, shapes, strict=True)}
        graph = trace_side(rule.pattern, arguments, _taken(rule.pattern, chosen), f"pattern of rule {rule.title!r}")
        pattern = Pattern(graph, rule.captured, default_attributes)
        impure = next((node for node in pattern.nodes if is_stateful(node.op_type) is not False), None)
        if impure is not None and not rule.effects:
            raise ArgumentError(
                f"the pattern holds a {impure.op_type}, which has effects, is random, or reads what may change",
                where=f"rule {rule.title!r}",
                remedy="say that it may go: effects=True",
            )
        self._chosen[id(pattern)], self._shapes[id(pattern)] = chosen, shapes
        self._known[id(pattern)] = pattern  # keeps it: its id stands for it
        return pattern

    def _typed(self, pattern: Pattern, captured: tuple[Value, ...]) -> Pattern | None:
        dtypes = tuple([value.dtype for value in captured])
        shapes = self._shapes[id(pattern)]
        if id(pattern) in self._ranked:
            pairs = zip(self._specs, (Captured(value).shape for value in captured), strict=True)
            shapes = tuple(shape if shape is not None or found is None else (None,) * len(found) for (_, shape), found in pairs)
        if pattern.dtypes == dtypes and shapes == self._shapes[id(pattern)]:
            return pattern
        if any(wanted is not None and wanted != found for (wanted, _), found in zip(self._specs, dtypes, strict=True)):
            return None
        key = id(pattern), dtypes, shapes
        if key not in self._known:
            try:
                self._known[key] = self._traced(dtypes, shapes, self._chosen[id(pattern)])
            except ArgumentError:
                self._known[key] = None  # there is no such pattern for these dtypes
        return self._known[key]

    def _replacement(self, match: Match) -> Graph | None:
        rule = self._rule
        shapes = self._shapes[id(match.pattern)]
        stated = (shape for _, shape in self._specs)
        for wanted, captured in zip(stated, match.values(), strict=True):
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
        return self._made_for(match, shapes)

    def _made_for(self, match: Match, shapes: tuple[Shape, ...]) -> Graph:
        """The replacement: one for all shapes where it does not ask for any."""
        dtypes = match.pattern.dtypes
        key = id(match.pattern), dtypes
        if self._takes_match:
            return self._replaced(match, tuple(captured.shape for captured in match.values()))
        if key not in self._for_all:
            try:
                made = self._replaced(match, shapes)
                self._for_all[key] = None if _asks(made) else made
            except ArgumentError:
                self._for_all[key] = None
        found = self._for_all[key]
        if found is None:
            exact = tuple(captured.shape for captured in match.values())
            found = self._made.get((*key, exact))
            if found is None:
                found = self._made[*key, exact] = self._replaced(match, exact)
        return found

    def _replaced(self, match: Match, shapes: tuple[Shape, ...]) -> Graph:
        rule, function = self._rule, self._rule.replacement
        arguments = {name: (v.dtype, shape) for name, v, shape in zip(rule.captured, match.captured, shapes, strict=True)}
        if not self._takes_all and not self._needed.issuperset(arguments):
            function = _without(function, arguments.keys() - self._needed)
        others = _taken(rule.replacement, self._chosen[id(match.pattern)]) | ({"match": match} if self._takes_match else {})
        return trace_side(function, arguments, others, f"replacement of rule {rule.title!r}")


def _without(function: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
    """The function, handed more than it takes."""
    left_out = frozenset(names)

    def handed(**given: Any) -> Any:
        return function(**{name: value for name, value in given.items() if name not in left_out})

    return handed


def _taken(function: Callable[..., Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    names = {p.name for p in _parameters(function)}
    return {name: value for name, value in chosen.items() if name in names}


def _alike_first(guesses: Sequence[Sequence[str]]) -> Iterable[tuple[str, ...]]:
    """Combinations, those first in which all are of the first type, or as near to it as is stated."""
    return sorted(product(*guesses), key=lambda names: (len(set(names)), [_GUESSES.index(n) if n in _GUESSES else 0 for n in names]))


def _depends_on_rank(graph: Graph) -> bool:
    """Whether TensorFlow may trace other operations where ranks are known."""
    return _asks(graph) or any(node.op_type in MATRIX_PRODUCTS for node in graph)


def _structure(pattern: Pattern) -> str:
    """What a pattern looks for, in words."""
    constants = (v.producer for node in pattern.nodes for v in node.inputs if is_constant(v.producer))
    return "\n".join(f"{node!r} {dict(node.attrs)}" for node in (*pattern.nodes, *constants))


def _asks(graph: Graph) -> bool:
    """Whether a graph asks for the shape of an input."""
    return any(node.op_type in ASKS_FOR_SHAPE and origin(node.inputs[0]) in graph.inputs for node in graph)


def _spec(given: Any, name: str) -> tuple[DType | None, Shape]:
    if given is None:
        return None, None
    try:
        if hasattr(given, "shape") and hasattr(given, "dtype"):
            return as_dtype(given.dtype), as_shape(given.shape)
        return (None, as_shape(given)) if isinstance(given, list | tuple) or hasattr(given, "rank") else (as_dtype(given), None)
    except ArgumentError as error:
        what = f"{given!r} says neither dtype nor shape"
        raise ArgumentError(what, argument="specs", item=name, remedy="give a tf.TensorSpec") from error
