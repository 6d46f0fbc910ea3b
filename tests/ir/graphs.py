"""Random graphs for Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from graphwright.ir.attributes import Attribute, FunctionReference, SerializedAttribute, ShapeAttribute
from graphwright.ir.dtypes import DTYPES, Shape
from graphwright.ir.graph import Function, Graph, Node, Value, Variable
from graphwright.ir.signature import Collection, NamedRefs, Signature

DTYPE_CHOICES = [DTYPES[name] for name in ("float32", "int32", "resource", "variant", "bfloat16")]

dtypes = st.sampled_from(DTYPE_CHOICES)
shapes: st.SearchStrategy[Shape] = st.none() | st.lists(st.none() | st.integers(0, 5), max_size=3).map(tuple)
names = st.text("abAB01_./->\\", min_size=1, max_size=6) | st.text(min_size=1, max_size=4).filter(lambda n: n[0] != "^" and ":" not in n)
_scalars: st.SearchStrategy[Attribute] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False),
    st.binary(max_size=6),
    dtypes,
    shapes.map(ShapeAttribute),
    st.builds(SerializedAttribute, st.binary(max_size=6)),
)
attributes: st.SearchStrategy[Attribute] = _scalars | st.lists(_scalars, max_size=3).map(tuple)


@st.composite
def graphs(draw: st.DrawFn, *, functions: bool = True) -> Graph:
    """A small random graph: fan-in, fan-out, control edges, odd names, attributes, variables, functions."""
    graph = Graph(draw(st.text(max_size=5)), versions=draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
    _fill(draw, graph)
    if functions:
        for k in range(draw(st.integers(0, 2))):
            body = Graph(f"f{k}", functions=graph.functions)
            _fill(draw, body)
            graph.functions[body.name] = Function(body.name, body, draw(st.binary(max_size=4)))
        for node in graph:
            if graph.functions and draw(st.integers(0, 4)) == 0:
                name = draw(st.sampled_from(sorted(graph.functions)))
                graph.set_attr(node, "f", FunctionReference(name, draw(st.binary(max_size=3))))
    return graph


def _fill(draw: st.DrawFn, graph: Graph) -> None:
    values: list[Value] = []
    nodes: list[Node] = []
    for _ in range(draw(st.integers(1, 8))):
        name = graph.unique_name(draw(names))
        nodes.append(
            graph.add_node(
                draw(st.sampled_from(["Add", "NoOp", "While", "my_function", "odd op"])),
                name,
                inputs=draw(st.lists(st.sampled_from(values), max_size=3)) if values else [],
                control_inputs=draw(st.lists(st.sampled_from(nodes), max_size=2)) if nodes else [],
                attrs=draw(st.dictionaries(st.text(min_size=1, max_size=3), attributes, max_size=2)),
                output_types=draw(st.lists(st.tuples(dtypes, shapes), max_size=2)),
                device=draw(st.sampled_from(["", "/device:CPU:0", 'odd "device"'])),
                extra=draw(st.binary(max_size=2)),
            )
        )
        values += nodes[-1].outputs
    if values:
        graph.inputs = draw(st.lists(st.sampled_from(values), max_size=2, unique=True))
        graph.outputs = draw(st.lists(st.sampled_from(values), max_size=3))
    graph.control_outputs = draw(st.lists(st.sampled_from(nodes), max_size=2))
    if draw(st.integers(0, 2)) == 0 and values:
        picked = st.dictionaries(st.text(max_size=3), st.sampled_from(values), max_size=2)
        graph.signatures[draw(st.text(max_size=3))] = Signature(
            draw(picked), draw(picked), draw(st.text(max_size=3)), draw(st.binary(max_size=2))
        )
    if draw(st.integers(0, 2)) == 0:
        held = st.sampled_from([*nodes, *values])
        graph.collections["held"] = Collection("nodes", draw(st.lists(held, max_size=3)))
        graph.collections[draw(st.text(max_size=3))] = Collection(
            "bytes",
            draw(
                st.lists(
                    st.binary(max_size=3)
                    | st.builds(NamedRefs, st.binary(max_size=3), st.dictionaries(st.text(max_size=3), held, max_size=2)),
                    max_size=2,
                )
            ),
        )
        graph.collections["numbers"] = Collection("ints", draw(st.lists(st.integers(-5, 5), max_size=2)))
    for node in nodes:
        if draw(st.integers(0, 6)) == 0:
            graph.set_attr(node, "_class", (b"loc:@" + draw(st.sampled_from(nodes)).name.encode("utf-8", "surrogateescape"), b"other"))
    for value in graph.inputs:
        if value.dtype.name == "resource":
            graph.variables[value] = Variable(draw(st.text(max_size=4)), DTYPES["float32"], draw(shapes), draw(st.booleans()))
