"""The doors through which live graphs come: what the words are given and give back is converted.

Code for `tf.contrib.graph_editor` hands `tf.Graph`, `tf.Operation` and `tf.Tensor` to the words, and gets such back. At the door each
becomes the view of a `LiveGraph`, the word does its work, and what it changed is carried over. Views, results of a transformation
and the like show operations and tensors, too (`_Shown`), as do the arguments of predicates and handlers. What a word changed
before it raised is taken back, but for operations that a handler has seen: TensorFlow removes none.
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


class _Call:
    """One call of a word with live objects: the graphs that take part."""

    def __init__(self) -> None:
        self._graphs: dict[int, LiveGraph] = {}

    def graph(self, live: Any) -> LiveGraph:
        if id(live) not in self._graphs:
            self._graphs[id(live)] = LiveGraph.of(live)
        return self._graphs[id(live)]

    def take(self, given: Any) -> Any:
        """What a word is given, in its own terms."""
        tf = import_tensorflow()
        if isinstance(given, tf.Graph):
            return self.graph(given)
        if isinstance(given, tf.Operation):
            graph = self.graph(given.graph)
            return graph.view_of(graph.ir[given.name])
        if isinstance(given, tf.Tensor) and tf.is_symbolic_tensor(given):
            graph = self.graph(given.graph)
            return graph.view_of_value(graph.value_of(given))
        if isinstance(given, _Shown):
            holder = _alike(type(given).__mro__[2], object.__getattribute__(given, "__dict__"))  # whose state it shows
            for graph in _live_graphs(holder):
                self.graph(graph.live)
            return holder
        if isinstance(given, Transformer):
            mine = copy(given)
            vars(mine).update({name: self.take(handler) for name, handler in vars(given).items()})
            return mine
        if isinstance(given, type):
            return Tensor if issubclass(given, tf.Tensor) else Node if issubclass(given, tf.Operation) else given
        if callable(given) and not hasattr(given, _WORD) and not isinstance(given, Node | Tensor):
            return self._callback(given)
        return _each(given, self.take)

    def give(self, made: Any) -> Any:
        """What a word gives back, in live terms, after what it changed is carried over."""
        if isinstance(made, LiveGraph):
            return self._written(made).live
        if isinstance(made, Node) and isinstance(made.home, LiveGraph):
            return self._written(made.home).operation_of(made.ir)
        if isinstance(made, Tensor) and isinstance(made.home, LiveGraph):
            return self._written(made.home).operation_of(made.ir.producer).outputs[made.value_index]
        if isinstance(made, _HOLDERS) and _live_graphs(made):
            return _alike(_shown_class(made.__class__), made.__dict__)
        return _each(made, self.give)

    def write(self) -> None:
        """Carry over what was changed."""
        for graph in self._graphs.values():
            graph.write()

    def forget(self) -> None:
        """Take back what was not carried over."""
        for graph in self._graphs.values():
            graph.read(anew=True)

    def _written(self, graph: LiveGraph) -> LiveGraph:
        if graph.ir.touched:
            graph.write()
        return graph

    def _callback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            given = self.give(args), self.give(kwargs)
            self.write()
            answer = function(*given[0], **given[1])
            for graph in self._graphs.values():
                graph.read()
            return self.take(answer)

        return called


_WORD = "_graphwright_word"


def _each(tree: Any, convert: Callable[[Any], Any]) -> Any:
    """The same container of what `convert` makes of the items, where it makes something else of one."""
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


def _listed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with views of dicts, generators and the like as lists, which can be looked at more than once."""
    once = (Iterator, MappingView, deque)
    found = {k: list(cast("Iterable[Any]", arg)) if isinstance(arg, once) else arg for k, arg in (*enumerate(args), *kwargs.items())}
    return tuple(found[k] for k in range(len(args))), {name: found[name] for name in kwargs}


def _is_live(given: Any) -> bool:
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:  # so there is nothing of its
        return False
    if isinstance(given, tf.Graph | tf.Operation | _Shown) or (isinstance(given, tf.Tensor) and tf.is_symbolic_tensor(given)):
        return True
    if isinstance(given, Mapping):
        return any(_is_live(key) or _is_live(item) for key, item in cast("Mapping[Any, Any]", given).items())
    return isinstance(given, list | tuple | set | frozenset) and any(map(_is_live, cast("Iterable[Any]", given)))


def door(word: Callable[..., Any], *, always: bool = False) -> Callable[..., Any]:
    """The word, for live objects too.

    Args:
        always: whether what it gives back is to be live whatever it is given.
    """

    @wraps(word)
    def through(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _listed(args, kwargs)
        if not always and not _is_live(args) and not _is_live(kwargs):
            return word(*args, **kwargs)
        call = _Call()
        try:
            result = word(*call.take(args), **call.take(kwargs))
            call.write()
        except BaseException:
            call.forget()
            raise
        return call.give(result)

    setattr(through, _WORD, True)
    return through


class _Shown:
    """Mixed into the class of what holds views of a live graph: attributes and methods show operations and tensors."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        call = _Call()
        found = getattr(call.take(self), name)
        return door(found, always=True) if inspect.ismethod(found) else call.give(found)


@cache
def _shown_class(kind: type) -> type:
    return type(kind.__name__, (_Shown, kind), {})


def _alike(kind: Any, state: dict[str, Any]) -> Any:
    """An object of a class with this very state, not a copy of it."""
    made = kind.__new__(kind)
    made.__dict__ = state
    return made


def _live_graphs(holder: Any) -> list[LiveGraph]:
    return [held for held in holder.__dict__.values() if isinstance(held, LiveGraph)]


def open_doors(*modules: ModuleType) -> None:
    """Let the words in these modules, and the constructors, take live objects. Each word is replaced by one and the same in all of them."""
    doors: dict[FunctionType, Any] = {}
    for module in modules:
        own: dict[str, Any] = {}
        for name, word in list(vars(module).items()):
            is_word = isinstance(word, FunctionType) and word.__module__.startswith("graphwright.editor.") and word.__name__[0] != "_"
            if is_word and not hasattr(word, _WORD):
                if word.__module__ == module.__name__:
                    own[name] = word
                doors.setdefault(word, door(word))
                setattr(module, name, doors[word])
        module.__dict__["__test__"] = own  # or doctest would not find the examples
    for kind in (SubGraphView, ControlOutputs):
        setattr(kind, "__init__", _constructor(kind.__init__))  # noqa: B010 - said so, it is not an override
    setattr(Transformer, "__call__", door(Transformer.__call__))  # noqa: B010


def _constructor(initialize: Any) -> Any:
    @wraps(initialize)
    def through(self: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = _listed(args, kwargs)
        if not _is_live(args) and not _is_live(kwargs):
            initialize(self, *args, **kwargs)
            return
        call = _Call()
        initialize(self, *call.take(args), **call.take(kwargs))
        self.__class__ = _shown_class(self.__class__)

    return through
