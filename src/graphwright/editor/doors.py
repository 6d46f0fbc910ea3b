"""Conversion of live objects: words take `tf.Graph`, `tf.Operation` and `tf.Tensor`, and return them.

Code for `tf.contrib.graph_editor` passes live objects. Each is converted to a view of a `LiveGraph`; after the word, its edits are
transferred to the live graph, and its result is converted back. Views, results of transformations, and arguments of predicates and handlers
show live objects too (`_Shown`). If a word raises, its edits are undone, except for operations that a handler has seen, because
TensorFlow cannot remove operations.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from copy import copy
from functools import cache, wraps
from types import FunctionType, ModuleType
from typing import Any, cast

from graphwright.editor.live_graph import LiveGraph
from graphwright.editor.node import Node
from graphwright.editor.subgraph import SubGraphView
from graphwright.editor.tensor import Tensor
from graphwright.editor.transform import TmpInfo, Transformer, TransformerInfo
from graphwright.editor.util import ControlOutputs, ListView
from graphwright.source.tensorflow_import import import_tensorflow

_HOLDERS = (SubGraphView, ControlOutputs, TmpInfo, TransformerInfo)
_DOOR_ATTRIBUTE = "_graphwright_word"


class _Call:
    def __init__(self) -> None:
        self._graphs: dict[int, LiveGraph] = {}

    def _graph(self, live: Any) -> LiveGraph:
        if id(live) not in self._graphs:
            self._graphs[id(live)] = LiveGraph.of(live)
        return self._graphs[id(live)]

    def view(self, thing: Any) -> Any:
        """Convert live objects to views, also inside containers, handlers and functions."""
        tf = import_tensorflow()
        if isinstance(thing, tf.Graph):
            return self._graph(thing)
        if isinstance(thing, tf.Operation):
            graph = self._graph(thing.graph)
            return graph.view_of(graph.ir[thing.name])
        if isinstance(thing, tf.Tensor) and tf.is_symbolic_tensor(thing):
            graph = self._graph(thing.graph)
            return graph.view_of_value(graph.value_of(thing))
        if isinstance(thing, _Shown):
            holder = _with_state(type(thing).__mro__[2], object.__getattribute__(thing, "__dict__"))
            for graph in _live_graphs(holder):
                self._graph(graph.live)
            return holder
        if isinstance(thing, Transformer):
            own = copy(thing)
            vars(own).update({name: self.view(handler) for name, handler in vars(thing).items()})
            return own
        if isinstance(thing, type):
            return Tensor if issubclass(thing, tf.Tensor) else Node if issubclass(thing, tf.Operation) else thing
        if callable(thing) and not hasattr(thing, _DOOR_ATTRIBUTE) and not isinstance(thing, Node | Tensor):
            return self._callback(thing)
        return _map_items(thing, self.view)

    def live(self, thing: Any) -> Any:
        """Convert views of live graphs to live objects, after their edits are transferred."""
        if isinstance(thing, LiveGraph):
            return _written(thing).live
        if isinstance(thing, Node) and isinstance(thing.home, LiveGraph):
            return _written(thing.home).operation_of(thing.ir)
        if isinstance(thing, Tensor) and isinstance(thing.home, LiveGraph):
            return _written(thing.home).operation_of(thing.ir.producer).outputs[thing.value_index]
        if isinstance(thing, _HOLDERS) and _live_graphs(thing):
            return _with_state(_shown_class(thing.__class__), thing.__dict__)
        return _map_items(thing, self.live)

    def write(self) -> None:
        """Transfer all edits."""
        for graph in self._graphs.values():
            graph.write()

    def revert(self) -> None:
        """Undo the edits that were not transferred."""
        for graph in self._graphs.values():
            graph.read(revert=True)

    def _callback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.live(args), self.live(kwargs)
            self.write()
            result = function(*args, **kwargs)
            for graph in self._graphs.values():
                graph.read()
            return self.view(result)

        return called


class _Shown:
    """Mixin for a class with views of a live graph: attributes and methods show live objects."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        call = _Call()
        attribute = getattr(call.view(self), name)
        return door(attribute, always=True) if inspect.ismethod(attribute) else call.live(attribute)


@cache
def _shown_class(kind: type) -> type:
    return type(kind.__name__, (_Shown, kind), {})


def _with_state(kind: Any, state: dict[str, Any]) -> Any:
    result = kind.__new__(kind)
    result.__dict__ = state
    return result


def _live_graphs(holder: Any) -> list[LiveGraph]:
    return [value for value in holder.__dict__.values() if isinstance(value, LiveGraph)]


def _written(graph: LiveGraph) -> LiveGraph:
    if graph.ir.touched:
        graph.write()
    return graph


def _map_items(tree: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert the items of a container; return anything else unchanged."""
    content, kind = tree, tree.__class__
    if isinstance(tree, ListView):
        return convert(list(content))
    if isinstance(tree, Mapping):
        pairs = [(convert(key), convert(item)) for key, item in content.items()]
        return kind(pairs) if isinstance(tree, dict) else dict(pairs)
    if not isinstance(tree, list | tuple | set | frozenset):
        return content
    items = [convert(item) for item in content]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _listed_all(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments, with generators and the like, which can be iterated only once, as lists."""

    def listed(argument: Any) -> Any:
        return list(cast("Iterable[Any]", argument)) if isinstance(argument, Iterator | MappingView | deque) else argument

    return tuple(map(listed, args)), {name: listed(argument) for name, argument in kwargs.items()}


def _is_live(thing: Any) -> bool:
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:
        return False
    if isinstance(thing, tf.Graph | tf.Operation | _Shown) or (isinstance(thing, tf.Tensor) and tf.is_symbolic_tensor(thing)):
        return True
    if isinstance(thing, Mapping):
        return any(_is_live(key) or _is_live(item) for key, item in cast("Mapping[Any, Any]", thing).items())
    return isinstance(thing, list | tuple | set | frozenset) and any(map(_is_live, cast("Iterable[Any]", thing)))


def door(word: Callable[..., Any], *, always: bool = False) -> Callable[..., Any]:
    """Return the word for live objects too.

    Args:
        always: whether to convert the result even if no argument is live.
    """

    @wraps(word)
    def through(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _listed_all(args, kwargs)
        if not always and not _is_live((args, kwargs)):
            return word(*args, **kwargs)
        call = _Call()
        try:
            result = word(*call.view(args), **call.view(kwargs))
            call.write()
        except BaseException:
            call.revert()
            raise
        return call.live(result)

    setattr(through, _DOOR_ATTRIBUTE, True)
    return through


def open_doors(*modules: ModuleType) -> None:
    """Let the words in these modules, and constructors, take live objects. A word stays the same object in all modules."""
    doors: dict[FunctionType, Any] = {}
    for module in modules:
        own: dict[str, Any] = {}
        for name, word in list(vars(module).items()):
            is_word = isinstance(word, FunctionType) and word.__module__.startswith("graphwright.editor.") and word.__name__[0] != "_"
            if is_word and not hasattr(word, _DOOR_ATTRIBUTE):
                if word.__module__ == module.__name__:
                    own[name] = word
                doors.setdefault(word, door(word))
                setattr(module, name, doors[word])
        module.__dict__["__test__"] = own  # for doctest
    for kind in (SubGraphView, ControlOutputs):
        setattr(kind, "__init__", _constructor(kind.__init__))  # noqa: B010 - it is not an override
    setattr(Transformer, "__call__", door(Transformer.__call__))  # noqa: B010


def _constructor(initialize: Any) -> Any:
    @wraps(initialize)
    def through(self: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = _listed_all(args, kwargs)
        if not _is_live((args, kwargs)):
            initialize(self, *args, **kwargs)
            return
        call = _Call()
        initialize(self, *call.view(args), **call.view(kwargs))
        self.__class__ = _shown_class(self.__class__)

    return through
