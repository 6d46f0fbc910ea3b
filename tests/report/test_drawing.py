"""Pictures: every node is in them, nothing is loaded, large graphs stay small boxes."""

from __future__ import annotations

import re

import pytest

from graphwright.errors import ArgumentError, UnsupportedError
from graphwright.ir.graph import DTYPES, Function, Graph, Variable
from graphwright.ir.signature import Signature
from graphwright.ir.text import from_text
from graphwright.report import graph_data
from graphwright.report.drawing import draw, page
from graphwright.report.drawing_tree import LARGEST_LEVEL, opened, scope_tree, visible
from tests.report.page_parser import data_of

F32 = [(DTYPES["float32"], (None, 3))]


def network(blocks: int, size: int = 5) -> Graph:
    graph = Graph("network")
    value = graph.add_node("Placeholder", "image", output_types=F32).outputs[0]
    graph.inputs = [value]
    for block in range(blocks):
        for k in range(size):
            value = graph.add_node("Relu", f"stage_{block // 10}/block_{block}/relu_{k}", inputs=[value], output_types=F32).outputs[0]
    graph.outputs = [value]
    return graph


def flat(count: int) -> Graph:
    graph = Graph("flat")
    value = graph.add_node("Placeholder", "x", output_types=F32).outputs[0]
    for k in range(count):
        value = graph.add_node("Relu", f"n{k}", inputs=[value], output_types=F32).outputs[0]
    return graph


def leaves_of(tree) -> list[int]:
    if isinstance(tree, int) or len(tree) == 2:
        return [tree if isinstance(tree, int) else tree[1]]
    return [leaf for child in tree[2] for leaf in leaves_of(child)]


@pytest.mark.parametrize("graph", [network(30), flat(10_000)], ids=["scopes", "flat"])
def test_the_tree_holds_each_node_once_and_no_level_is_too_wide(graph):
    root, leaves = scope_tree(graph)
    assert set(leaves) == set(graph.nodes)
    assert root.node_count == len(graph)
    parts = [root]
    for part in parts:
        parts += part.parts
        assert len(part.parts) <= LARGEST_LEVEL
        assert all(child.parent is part for child in part.parts)
    assert sum(part.node is not None for part in parts) == len(graph)


def test_closed_scopes_stand_for_what_lies_in_them():
    graph = network(20)
    root, leaves = scope_tree(graph)
    leaf = leaves[graph["stage_1/block_12/relu_0"]]
    assert visible(leaf, {root}).path == "stage_1"
    assert visible(leaf, opened(root, ["stage_1"])).path == "stage_1/block_12"


def test_the_page_loads_nothing_and_holds_every_node():
    graph = network(30)
    graph.functions["body"] = Function("body", flat(3))
    text = page(graph, open_scopes=("stage_1/block_12",))
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)\s*=|https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", text)
    views = data_of(text)["views"]
    assert [view["title"] for view in views] == ["network", "function body"]
    assert sorted(leaves_of(views[0]["tree"])) == list(range(len(graph)))
    names = [node[0] for node in views[0]["nodes"]]
    assert sorted(names) == sorted(node.name for node in graph)
    for name, _, _, inputs, _, types, *_ in views[0]["nodes"]:
        assert [names[k] for k in inputs] == [v.producer.name for v in graph[name].inputs]
        assert types == "float32[?,3]"


def saved_model() -> Graph:
    """As Keras 3 exports: a signature that calls a function, variables beside it, and what saves them."""
    handle = '{shape = shape[3, 3], shared_name = "dense/kernel"} : resource[]'
    return from_text(f"""
    graph "model"
    %serve_x = Placeholder() : float32[?, 3]
    %w = VarHandleOp() {handle}
    %b = VarHandleOp() {handle.replace("kernel", "bias").replace("3, 3", "3")}
    %filename = Placeholder() : string[]
    %read = ReadVariableOp(%w:0) : float32[3, 3]
    %save = SaveV2(%filename:0, %read:0)
    %call = StatefulPartitionedCall(%serve_x:0, %w:0, %b:0) {{f = @wrapper}} : float32[?, 3]
    function "wrapper"
    inputs %x:0, %v:0, %u:0
    outputs %out:0
    %x = _Arg() : float32[?, 3]
    %v = _Arg() : resource[]
    %u = _Arg() : resource[]
    %inner = StatefulPartitionedCall(%x:0, %v:0, %u:0) {{f = @model}} : float32[?, 3]
    %out = Identity(%inner:0) : float32[?, 3]
    function "model"
    inputs %x:0, %v:0, %u:0
    outputs %result:0
    %x = _Arg() : float32[?, 3]
    %v = _Arg() : resource[]
    %u = _Arg() : resource[]
    %"net_1/dense_1/Cast/ReadVariableOp" = ReadVariableOp(%v:0) : float32[3, 3]
    %"net_1/dense_1/MatMul" = MatMul(%x:0, %"net_1/dense_1/Cast/ReadVariableOp":0) : float32[?, 3]
    %"net_1/dense_1/bias" = ReadVariableOp(%u:0) : float32[3]
    %"net_1/dense_1/BiasAdd" = BiasAdd(%"net_1/dense_1/MatMul":0, %"net_1/dense_1/bias":0) : float32[?, 3]
    %"net_1/dense_1/pass" = Identity(%"net_1/dense_1/BiasAdd":0) : float32[?, 3]
    %"net_1/relu_1/Relu" = Relu(%"net_1/dense_1/pass":0) : float32[?, 3]
    %result = Identity(%"net_1/relu_1/Relu":0) : float32[?, 3]
    """)


def test_a_picture_opens_on_what_is_served():
    """Inputs, layers and outputs by the user's names; variables, reads and saving are no boxes, and weights stand with their readers."""
    graph = saved_model()
    graph.signatures["serving_default"] = Signature({"image": graph.value("serve_x")}, {"scores": graph.value("call")})
    views = data_of(page(graph))["views"]
    assert [view["title"] for view in views] == ["from inputs to outputs", "all nodes", "function wrapper", "function model"]
    nodes = {node[0]: node for node in views[0]["nodes"]}
    assert [views[0]["ops"][node[1]] for node in nodes.values()] == ["Placeholder", "MatMul", "BiasAdd", "Relu", "Identity"]
    assert list(nodes) == ["image", "dense/MatMul", "dense/BiasAdd", "relu/Relu", "scores"]
    assert [node[3] for node in nodes.values()] == [[], [0], [1], [2], [3]]
    assert nodes["dense/MatMul"][7] == ["dense/kernel float32[3,3]"]
    assert nodes["dense/BiasAdd"][7] == ["dense/bias float32[3]"]
    assert [nodes[name][2] for name in ("image", "relu/Relu", "scores")] == [1, 0, 3]
    assert [part if isinstance(part, int) else part[0] for part in views[0]["tree"][2]] == [0, "dense", "relu", 4]
    assert len(graph["call"].inputs) == 3, "the graph that was given stays as it is"


def test_a_traced_step_shows_its_layers_and_its_loss_first():
    """Variables are arguments there, updates hang on gradients, a metric is assigned what the loss is, and one scope holds the model.

    An average of what a layer makes is no output, though nobody reads it either.
    """
    layers = "".join(
        f"""
    %"net_1/fc{k}_1/read" = ReadVariableOp(%w:0) : float32[3, 3]
    %"net_1/fc{k}_1/MatMul" = MatMul(%{f'"net_1/fc{k - 1}_1/MatMul"' if k else "x"}:0, %"net_1/fc{k}_1/read":0) : float32[?, 3]"""
        for k in range(30)
    )
    graph = from_text(f"""
    graph "step"
    %x = Placeholder() : float32[?, 3]
    %y = Placeholder() : float32[?, 3]
    %w = Placeholder() : resource[]
    %total = Placeholder() : resource[]
    %mean = Placeholder() : resource[]{layers}
    %"net_1/fc3_1/average" = Mean(%"net_1/fc3_1/MatMul":0, %x:0) : float32[3]
    %average = AssignSubVariableOp(%mean:0, %"net_1/fc3_1/average":0)
    %loss = SquaredDifference(%"net_1/fc29_1/MatMul":0, %y:0) : float32[?, 3]
    %add = AssignAddVariableOp(%total:0, %loss:0)
    %"gradient_tape/loss/Mul" = Mul(%loss:0, %loss:0) : float32[?, 3]
    %"adam/Mul" = Mul(%"gradient_tape/loss/Mul":0, %"net_1/fc0_1/read":0) : float32[3, 3]
    %"adam/Assign" = AssignSubVariableOp(%w:0, %"adam/Mul":0)
    %new = ReadVariableOp(%w:0) ^"adam/Assign" : float32[3, 3]
    %out = Identity(%new:0) : float32[3, 3]
    """)
    view = data_of(page(graph))["views"][0]
    assert len(view["nodes"]) == 33
    assert [part if isinstance(part, int) else part[0] for part in view["tree"][2]] == [0, 1, *(f"fc{k}" for k in range(30)), 32]
    assert view["nodes"][2][7] == ["w float32[3,3]"]


def test_what_a_model_runs_between_its_layers_is_drawn_there():
    names = ["net_1/first_1/MatMul", "net_1/Gelu/Erf", "net_1/second_1/MatMul", "net_1/Gelu_1/Erf", "net_1/third_1/MatMul", "net_1/add"]
    graph = Graph("net")
    value = graph.add_node("Placeholder", "x", output_types=F32).outputs[0]
    for name in names:
        value = graph.add_node("Relu", name, inputs=[value], output_types=F32).outputs[0]
    for layer in ("first", "second", "third"):
        weight = graph.add_node("Placeholder", f"{layer}_weight", output_types=[(DTYPES["resource"], ())]).outputs[0]
        graph.variables[weight] = Variable(f"{layer}/kernel", DTYPES["float32"], (3, 3), True)
    tree = data_of(page(graph))["views"][0]["tree"]
    assert [part if isinstance(part, int) else part[0] for part in tree[2]] == [0, "first", "Gelu", "second", "Gelu_1", "third", 6]


def test_blocks_of_a_flat_model_are_folded():
    graph = Graph("net")
    value = graph.add_node("Placeholder", "x", output_types=F32).outputs[0]
    for k in range(60):
        value = graph.add_node("Relu", f"block_{k // 3}_{'abc'[k % 3]}/Relu", inputs=[value], output_types=F32).outputs[0]
    tree = data_of(page(graph))["views"][0]["tree"]
    assert [part if isinstance(part, int) else part[0] for part in tree[2]] == [0, "20 × block_0…19"]
    assert [block[0] for block in tree[2][1][2]] == [f"block_{k}" for k in range(20)]
    assert tree[2][1][2][0][2] == [["block_0_a", 1], ["block_0_b", 2], ["block_0_c", 3]]


def test_names_are_shown_and_not_obeyed(tmp_path):
    graph = Graph("</script><script>alert(1)</script>")
    graph.add_node("No</script>Op", '</script><b>"x\\', output_types=F32)
    text = page(graph)
    assert text.lower().count("</script>") == 2
    assert "<b>" not in text


def test_only_a_scope(tmp_path):
    graph = network(20)
    assert len(data_of(page(graph, scope="stage_1/block_12"))["views"][0]["nodes"]) == 5
    with pytest.raises(ArgumentError, match="no node lies in scope 'stage_9'"):
        page(graph, scope="stage_9")


def test_the_default_is_a_page_under_the_name_of_the_graph(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert draw(network(1)).name == "network.html"
    assert draw(network(1), tmp_path / "other").read_text().startswith("<!doctype html>")


def test_what_cannot_be_drawn(tmp_path, monkeypatch):
    for suffix in (".png", ".svg"):
        with pytest.raises(ArgumentError, match=f"cannot be a '{suffix}' file"):
            draw(network(1), tmp_path / f"g{suffix}")
    with pytest.raises(ArgumentError, match="there is no folder"):
        draw(network(1), tmp_path / "none" / "g.html")
    monkeypatch.setattr(graph_data, "_MOST_NODES", 3)
    with pytest.raises(UnsupportedError, match="too many for one picture"):
        page(network(1), scope="stage_0")
