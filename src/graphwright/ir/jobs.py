"""Conversion of arguments to graphs: a path, a model, a function, whatever `graphwright.load` reads."""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar

from graphwright.errors import ArgumentError
from graphwright.ir.graph import Graph
from graphwright.ir.traits.variables import VARIABLES

Words = ParamSpec("Words")
Result = TypeVar("Result")
_ON_ALL = (
    "A path, a model or anything else that `load` reads stays unchanged: the changed graph is written to `out`, as by `write`\n"
    "    (`overwrite`: replace an existing model). A `Graph` is changed in place, and also written if `out` is given."
)
_ON_NEW = "The new graph is also written if `out` is given, as by `write` (`overwrite`: replace an existing model)."


def public_words() -> Any:
    """Return the package, whose words load and write files."""
    return sys.modules["graphwright"]


def as_graph(source: Any) -> Graph:
    return source if isinstance(source, Graph) else public_words().load(source)


def values_beside(graph: Graph) -> dict[str, Any]:
    """Return the values of the variables of a loaded graph, which are stored outside of it."""
    has_variables = any(node.op_type in VARIABLES for node in graph.nodes) or any(value.dtype.name == "resource" for value in graph.inputs)
    return public_words().variable_values(graph) if has_variables and graph.package is not None else {}


class Written(TypedDict, total=False):
    """Keyword arguments of all jobs that change a graph: where to write the result, as `graphwright.write` does."""

    out: str | Path | None
    overwrite: bool


_DEFAULTS: dict[str, Any] = {"out": None, "overwrite": False}


def _written(job: Callable[..., Any], said: str, *, is_new: bool) -> Callable[..., Any]:
    """Wrap a job so that it takes `out` and `overwrite` too, documented by `said`; with `is_new`, it returns a new graph."""
    signature = inspect.signature(job)
    first = next(iter(signature.parameters))

    @wraps(job)
    def done(*args: Any, **kwargs: Any) -> Any:
        words = public_words()
        out, overwrite = (kwargs.pop(name, default) for name, default in _DEFAULTS.items())
        if out is not None:
            _ = words.write  # loads the module that knows
            words.source.model_folder.check_target(out, overwrite=overwrite)
        bound = signature.bind(*args, **kwargs)
        graph = bound.arguments[first]
        if out is None and not is_new and not isinstance(graph, Graph):
            raise ArgumentError(
                f"{job.__name__} changes a graph, was given {type(graph).__name__}, and not where the changed graph goes",
                argument="out",
                cause="a path or a model stays unchanged",
                remedy=f"give out=PATH; or change and keep a graph: graph = graphwright.load(...), {job.__name__}(graph, ...)",
            )
        if is_new:
            graph = result = job(*bound.args, **bound.kwargs)
        else:
            graph = bound.arguments[first] = as_graph(graph)
            with graph.restored_on_error():
                result = job(*bound.args, **bound.kwargs)
        if out is not None:
            words.write(graph, out, overwrite=overwrite)
        return result

    summary, gap, rest = (job.__doc__ or "").partition("\n\n")
    done.__doc__ = f"{summary}\n\n    {said}{gap}{rest}"
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    where = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default) for name, default in _DEFAULTS.items()]
    done.__signature__ = signature.replace(parameters=[*own, *where])  # pyright: ignore[reportAttributeAccessIssue]
    return done


def edits_in_place(job: Callable[Concatenate[Graph, Words], Result]) -> Callable[Concatenate[Any, Words], Result]:
    """Wrap a job so that it takes whatever `graphwright.load` reads: the graph is loaded, changed, and written at `out`.

    A graph is as before if the job raises an error. The job declares `**written: Unpack[Written]`, and is called without them.

    >>> edits_in_place(lambda graph: 0)("model.pb")
    Traceback (most recent call last):
        ...
    graphwright.errors.ArgumentError: <lambda> changes a graph, was given str, and not where the changed graph goes
      where: argument 'out'
      likely cause: a path or a model stays unchanged
      remedy: give out=PATH; or change and keep a graph: graph = graphwright.load(...), <lambda>(graph, ...)
    """
    return _written(job, _ON_ALL, is_new=False)


def makes_graph(job: Callable[Concatenate[Any, Words], Graph]) -> Callable[Concatenate[Any, Words], Graph]:
    """Wrap a job that returns a new graph, so that the graph is also written to `out`; the job declares `**written`."""
    return _written(job, _ON_NEW, is_new=True)
