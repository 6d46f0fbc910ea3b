"""What functions of graphs are handed in place of a graph: a path, a model, a function, whatever `graphwright.load` reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from graphwright.errors import ArgumentError
from graphwright.ir.graph import Graph, public_words
from graphwright.ir.traits.variables import VARIABLES

Words = ParamSpec("Words")
Result = TypeVar("Result")


def as_graph(given: Any) -> Graph:
    """The graph itself, or what `graphwright.load` reads."""
    return given if isinstance(given, Graph) else public_words().load(given)


def values_beside(graph: Graph) -> dict[str, Any]:
    """The values of the variables of a graph that was loaded, which lie outside of it."""
    has_variables = any(node.op_type in VARIABLES for node in graph.nodes) or any(value.dtype.name == "resource" for value in graph.inputs)
    return public_words().variable_values(graph) if has_variables and graph.package is not None else {}


def edits_in_place(job: Callable[Concatenate[Graph, Words], Result]) -> Callable[Concatenate[Graph, Words], Result]:
    """The job, which refuses what is no graph: what it changed would be lost.

    >>> edits_in_place(lambda graph: 0)("model.pb")
    Traceback (most recent call last):
        ...
    graphwright.errors.ArgumentError: <lambda> changes a graph, and was given str
      where: argument 'graph'
      likely cause: of a path or a model nothing would be changed but what was read
      remedy: graph = graphwright.load(...), <lambda>(graph, ...), and graphwright.write(graph, path)
    """

    @wraps(job)
    def checked(graph: Graph, *args: Words.args, **kwargs: Words.kwargs) -> Result:
        if isinstance(graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
            return job(graph, *args, **kwargs)
        raise ArgumentError(
            f"{job.__name__} changes a graph, and was given {type(graph).__name__}",
            argument="graph",
            cause="of a path or a model nothing would be changed but what was read",
            remedy=f"graph = graphwright.load(...), {job.__name__}(graph, ...), and graphwright.write(graph, path)",
        )

    return checked
