"""What a listing shows of a graph."""

from __future__ import annotations

import dataclasses
import json

from graphwright.ir.graph import Graph
from graphwright.ir.signature import Collection, Signature
from graphwright.ir.text import from_text
from graphwright.report.listing import listing


def served() -> Graph:
    graph = from_text("""
    graph "model"
    %image = Placeholder() : float32[?, 8]
    %w = VarHandleOp() {shape = shape[8, 2]} : resource[]
    %scores = PartitionedCall(%image:0, %w:0) {f = @call} : float32[?, 2]
    function "call"
    inputs %a:0, %v:0
    outputs %c:0
    %a = _Arg() : float32[?, 8]
    %v = _Arg() : resource[]
    %b = ReadVariableOp(%v:0) : float32[8, 2]
    %c = MatMul(%a:0, %b:0) : float32[?, 2]
    """)
    graph.signatures["serve"] = Signature({"image": graph.value("image")}, {"scores": graph.value("scores")}, "predict")
    graph.collections["losses"] = Collection("nodes", [graph["scores"]])
    return graph


def test_signatures_functions_and_counts():
    assert listing(served(), 1).text().splitlines() == [
        "model: 3 nodes, 1 function, 1 variable",
        "signature serve (predict)",
        "  in   image   image:0   float32[?,8]",
        "  out  scores  scores:0  float32[?,2]",
        "functions",
        "        4  call(float32[?,8], 1 variable) -> (float32[?,2])",
        "op types",
        "        1  Placeholder",
        "        1  VarHandleOp",
        "        1  PartitionedCall",
        "collections",
        "        1  losses",
    ]


def test_functions_have_short_names_that_still_differ():
    names = ("__inference_train_step_12", "__inference_call_3", "__inference_call_4", "__inference_" + "long_" * 20 + "end_7")
    graph = Graph("g")
    for name in names:
        graph.functions[name] = from_text(f'graph "g"\nfunction "{name}"\noutputs %x:0\n%x = Const() : float32[]').functions[name]
    shown = [line.split()[1].partition("(")[0] for line in listing(graph, 0).text().splitlines() if "->" in line]
    assert shown == ["train_step", "call_3", "call_4", "long_long_long_…ng_long_long_end"]


def test_long_lists_are_cut_and_names_cannot_draw_on_the_terminal():
    graph = Graph("a\x1b[31m")
    for k in range(5):
        graph.add_node(f"Op{k}\x07", f"n{k}")
    text = listing(graph, 0).text(rows=2)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.endswith("  and 3 more")


def test_it_is_plain_data():
    data = json.loads(json.dumps(dataclasses.asdict(listing(served(), 1))))
    assert data["signatures"][0]["inputs"] == [{"key": "image", "name": "image:0", "dtype": "float32", "shape": [None, 8]}]
    assert data["op_types"] == {"Placeholder": 1, "VarHandleOp": 1, "PartitionedCall": 1}
