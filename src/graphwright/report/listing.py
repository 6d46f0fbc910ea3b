"""A summary of a graph: inputs, outputs, signatures, functions and op types, as text or as data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphwright.ir.dtypes import Shape, format_shape
from graphwright.ir.graph import Graph, Value
from graphwright.report.units import counted, format_count, printable, shorten_middle

_TRACE = re.compile(r"__inference_(.+)_\d+")  # the name that TensorFlow gives the trace of a function


@dataclass(frozen=True, slots=True)
class ValueLine:
    """A value, and its key in a signature; the shape is None if its rank is unknown."""

    key: str
    name: str
    dtype: str
    shape: Shape

    @property
    def type(self) -> str:
        return self.dtype + format_shape(self.shape)


@dataclass(frozen=True, slots=True)
class SignatureLines:
    """A named way to call the graph."""

    name: str
    method_name: str
    inputs: tuple[ValueLine, ...]
    outputs: tuple[ValueLine, ...]


@dataclass(frozen=True, slots=True)
class FunctionLine:
    """A function of the library."""

    name: str
    node_count: int
    arguments: tuple[ValueLine, ...]
    results: tuple[ValueLine, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A summary of a graph."""

    name: str
    node_count: int
    variable_count: int
    inputs: tuple[ValueLine, ...]
    outputs: tuple[ValueLine, ...]
    signatures: tuple[SignatureLines, ...]
    functions: tuple[FunctionLine, ...]
    op_types: dict[str, int]
    collections: dict[str, int]

    def text(self, rows: int = 20) -> str:
        """Return the summary as text, with at most `rows` functions, op types and values of each kind."""
        counts = [(self.node_count, "node"), (len(self.functions), "function"), (self.variable_count, "variable")]
        lines = [f"{printable(self.name) or 'graph'}: {', '.join(counted(*pair) for pair in counts)}"]
        for signature in self.signatures:
            method = f" ({signature.method_name})" if signature.method_name else ""
            lines += [printable(f"signature {signature.name}{method}"), *_ports(signature.inputs, signature.outputs, rows)]
        if not self.signatures:
            lines += ["no signature; inputs and outputs are", *_ports(self.inputs, self.outputs, rows)]
        for title, counted_names in (
            ("functions", _functions(self.functions)),
            ("op types", self.op_types.items()),
            ("collections", self.collections.items()),
        ):
            if counted_names:
                lines += [title, *_cut([f"  {count:>7,}  {printable(name)}" for name, count in counted_names], rows)]
        return "\n".join(lines)


def listing(graph: Graph, variable_count: int, *, inputs: Iterable[Value] = (), outputs: Iterable[Value] = ()) -> Listing:
    """Summarize a graph; `inputs` and `outputs` stand for the signatures that it lacks."""
    signatures = [SignatureLines(k, s.method_name, _keyed(s.inputs), _keyed(s.outputs)) for k, s in graph.signatures.items()]
    bodies = ((name, function.body) for name, function in graph.functions.items())
    functions = [FunctionLine(name, len(body), _at_rest(body.inputs), _at_rest(body.outputs)) for name, body in bodies]
    counts = Counter(node.op_type for node in graph)
    return Listing(
        graph.name,
        len(graph),
        variable_count,
        _keyed({value.producer.name: value for value in inputs}),
        _keyed({value.producer.name if value.index == 0 else value.name: value for value in outputs}),
        tuple(signatures),
        tuple(functions),
        dict(counts.most_common()),
        {name: len(collection.items) for name, collection in graph.collections.items()},
    )


def _keyed(values: Mapping[str, Value]) -> tuple[ValueLine, ...]:
    return tuple(ValueLine(key, value.name, value.dtype.name, value.shape) for key, value in values.items())


def _at_rest(values: Iterable[Value]) -> tuple[ValueLine, ...]:
    """Return the recorded shapes: inferring the shapes of all function bodies takes long."""
    return tuple(ValueLine("", value.name, value.dtype.name, value.last_shape) for value in values)


def _ports(inputs: tuple[ValueLine, ...], outputs: tuple[ValueLine, ...], rows: int) -> list[str]:
    both = (*inputs[:rows], *outputs[:rows])
    widths = [max((len(printable(text)) for text in texts), default=0) for texts in ([v.key for v in both], [v.name for v in both])]

    def lines(word: str, values: Sequence[ValueLine]) -> list[str]:
        return _cut([f"  {word}  {printable(v.key):<{widths[0]}}  {printable(v.name):<{widths[1]}}  {v.type}" for v in values], rows)

    return lines("in ", inputs) + lines("out", outputs)


def _functions(functions: Sequence[FunctionLine]) -> list[tuple[str, int]]:
    """Return functions in words with their number of nodes, the largest first, by the shortest names that differ."""
    short = {f.name: _TRACE.sub(r"\1", f.name) for f in functions}
    taken = Counter(short.values())
    rows: list[tuple[str, int]] = []
    for function in sorted(functions, key=lambda f: -f.node_count):
        name = short[function.name] if taken[short[function.name]] == 1 else function.name.removeprefix("__inference_")
        results = ", ".join(v.type for v in function.results[:2]) + (", ..." if len(function.results) > 2 else "")
        types = [v.type for v in function.arguments if v.dtype != "resource"]
        variables = len(function.arguments) - len(types)
        arguments = [*types[:2], *(["..."] if len(types) > 2 else []), *([counted(variables, "variable")] if variables else [])]
        rows.append((f"{shorten_middle(printable(name), 32)}({', '.join(arguments)}) -> ({results})", function.node_count))
    return rows


def _cut(lines: list[str], rows: int) -> list[str]:
    return lines[:rows] + ([f"  and {format_count(len(lines) - rows)} more"] if len(lines) > rows else [])
