"""Each invariant that `verify` lists, broken on purpose behind the graph's back."""

from __future__ import annotations

import pytest
from hypothesis import given

from graphwright.errors import GraphError
from graphwright.ir.attributes import FunctionReference
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.graph import Function, Graph, Node, Variable
from graphwright.ir.signature import Collection, NamedRefs, Signature
from graphwright.ir.text import from_text
from graphwright.ir.verify import verify
from tests.ir.graphs import graphs

F32 = (DTYPES["float32"], (2,))


@pytest.fixture
def graph() -> Graph:
    return from_text("""
        graph "g"
        inputs %x:0
        outputs %b:0
        control_outputs %log
        %x = Placeholder() : float32[2]
        %log = Print()
        %a = Relu(%x:0) : float32[2]
        %b = Neg(%a:0) ^log : float32[2]
        function "body"
        """)


@given(graphs())
def test_random_graphs_are_well_formed(graph):
    verify(graph)


def stranger(op_type: str = "Const") -> Node:
    return Graph().add_node(op_type, "stranger", output_types=[F32])


BROKEN = {
    "a node under another name": (lambda g: setattr(g["a"]._links, "name", "z"), "'z' is not found under its name"),
    "a node of another graph": (lambda g: setattr(g["a"], "graph", Graph("elsewhere")), "says that it belongs to graph 'elsewhere'"),
    "a value at another place": (lambda g: setattr(g.value("a"), "index", 1), "output 0 of 'a' says that it is a:1"),
    "an input from elsewhere": (
        lambda g: setattr(g["b"]._links, "inputs", stranger().outputs),
        r"b.inputs\[0\] is stranger:0, which is not in the graph",
    ),
    "an input that does not list its reader": (
        lambda g: setattr(g["b"]._links, "inputs", g["x"].outputs),
        r"b.inputs\[0\] is x:0, which does not list that use(.|\n)*%b = Neg\(%x:0\) \^log : float32\[2\]",
    ),
    "a use that nothing makes": (
        lambda g: g.value("a")._uses.update({(g["x"], 0): None}),
        r"a:0 lists the use x.inputs\[0\], which does not read it",
    ),
    "a control input of one side": (
        lambda g: g["log"]._links.control_consumers.pop(g["b"]),
        "'b' waits for 'log', which does not know it",
    ),
    "a control consumer of one side": (
        lambda g: g["log"]._links.control_consumers.update({g["a"]: None}),
        "'log' lists 'a', which does not wait for it",
    ),
    "a node that waits for itself": (lambda g: g["b"]._links.control_inputs.update({g["b"]: None}), "'b' waits for itself"),
    "a control input from elsewhere": (
        lambda g: g["b"]._links.control_inputs.update({stranger("NoOp"): None}),
        "'b' waits for 'stranger', which is not in the graph",
    ),
    "an output from elsewhere": (
        lambda g: setattr(g, "_outputs", stranger().outputs),
        "an output is 'stranger:0', which is not in the graph",
    ),
    "an input twice": (lambda g: setattr(g, "_inputs", g["x"].outputs * 2), "an input twice"),
    "a control output from elsewhere": (
        lambda g: setattr(g, "_control_outputs", (stranger(),)),
        "a control output is 'stranger', which is not in the graph",
    ),
    "a variable behind no resource": (
        lambda g: g.variables.update({g.value("x"): Variable("w", *F32, trainable=True)}),
        "variable 'w' stands behind x:0, which is not a resource",
    ),
    "a signature from elsewhere": (
        lambda g: g.signatures.update(s=Signature({"x": stranger().outputs[0]}, {})),
        "input 'x' of signature 's' is 'stranger:0', which is not in the graph",
    ),
    "a collection of nodes from elsewhere": (
        lambda g: g.collections.update(c=Collection("nodes", [stranger()])),
        "an item of collection 'c' is 'stranger', which is not in the graph",
    ),
    "a message from elsewhere": (
        lambda g: g.collections.update(c=Collection("bytes", [b"plain", NamedRefs(b"", {"p": g["a"], "q": stranger()})])),
        "an item of collection 'c' is 'stranger', which is not in the graph",
    ),
    "a cycle": (
        lambda g: g.add_control_input(g["a"], g["b"]),
        r"wait for each other: (a -> b|b -> a)\n(.|\n)*%a = Relu\(%x:0\) \^b",
    ),
    "a function that is missing": (lambda g: g.set_attr(g["a"], "f", FunctionReference("lost")), "function 'lost' is not in the library"),
    "a function under another name": (lambda g: setattr(g.functions["body"], "name", "g"), "function 'g' is in the library as 'body'"),
    "a body with another library": (lambda g: g.functions.update(body=Function("body", Graph("body"))), "has another library"),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_invariant_is_named(graph, change, message):
    change(graph)
    with pytest.raises(GraphError, match=message):
        verify(graph)
