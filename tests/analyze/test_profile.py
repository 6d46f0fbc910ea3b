"""Tables and trees of a measured step, made by hand so that every figure is known."""

import math

import pytest

from graphwright.analyze.profile_tree import NO_LINE, TreeOptions, grow_tree
from graphwright.analyze.step_profile import OpRun, SourceLine, StepProfile, by_layer, by_op_type, whole
from graphwright.errors import ArgumentError
from graphwright.report.profile_report import ProfileTree
from tests.report import profiles


def names(node):
    return [node.name, *(name for child in node.children for name in names(child))]


def grow(**options):
    return grow_tree(profiles.small_profile(), TreeOptions(**options))


def test_op_types_add_up_to_the_step():
    profile = profiles.small_profile()
    rows = by_op_type(profile)
    assert sum(row.share for row in rows.values()) == pytest.approx(1.0)
    assert next(iter(rows)) == "MatMul"  # the most time first
    product = rows["MatMul"]
    assert (product.nodes, product.occurrences) == (2, 2)  # the kernel is the work of the host's second run
    assert product.time_s == pytest.approx(110e-6)
    assert (product.forward_time_s, product.backward_time_s) == (pytest.approx(40e-6), pytest.approx(70e-6))
    assert (product.host_time_s, product.accelerator_time_s) == (pytest.approx(80e-6), pytest.approx(30e-6))
    assert product.peak_bytes == 2 * profiles.MIB  # the largest of its runs
    assert product.flops == 8e6
    assert product.flops_per_s == pytest.approx(8e6 / 30e-6)  # the accelerator did the work
    assert rows["_Recv"].unknown == 1
    assert math.isnan(rows["_Recv"].arithmetic_intensity)
    total = whole(profile)
    assert total.flops == sum(row.flops for row in rows.values())
    assert total.parameters == 1024


def test_layers_hold_parameters_of_what_did_not_run():
    rows = by_layer(profiles.small_profile())
    assert rows["net/dense"].parameters == 1024
    assert rows["net/dense"].residual_bytes == 64
    assert rows["loss"].time_s == pytest.approx(30e-6)


def test_a_profile_without_runs_has_empty_tables():
    nothing = StepProfile("nothing", (), (), 0.0)
    assert by_op_type(nothing) == {}
    assert whole(nothing).time_s == 0.0
    assert grow_tree(nothing, TreeOptions()).children == ()


def test_scopes_are_a_tree_and_their_totals_are_sums():
    root = grow(depth=9)
    net = next(node for node in root.children if node.name == "net")
    assert names(net) == ["net", "net/dense", *sorted(names(net)[2:], key=names(net).index)]
    assert net.own.time_s == 0.0
    assert net.total.time_s == pytest.approx(160e-6)
    assert root.total.time_s == pytest.approx(whole(profiles.small_profile()).time_s)
    assert "net/dense/ReadVariableOp" in names(root)


def test_depth_hides_what_is_deep_but_counts_it():
    root = grow(depth=1)
    assert sorted(names(root)) == ["(step)", "loss", "net"]
    assert root.total.flops == pytest.approx(8.001e6)
    assert names(grow(depth=0)) == ["(step)"]


def test_dataflow_puts_producers_below_their_first_reader():
    root = grow(by="graph")
    gradient = next(node for node in root.children if node.name == "net/dense/MatMul_1")
    assert [child.name for child in gradient.children] == ["net/dense/Relu", "loss/Recv"]
    assert names(gradient)[2] == "net/dense/MatMul"
    assert gradient.total.time_s == pytest.approx(150e-6)


def test_circles_of_a_loop_are_counted_once():
    runs = tuple(OpRun(name, "Op", "CPU:0", "", k, k + 1) for k, name in enumerate("abc"))
    profile = StepProfile("loop", runs, (), 3e-9, inputs={"a": ("c",), "b": ("a",), "c": ("b",)})
    root = grow_tree(profile, TreeOptions(by="graph"))
    assert sorted(names(root)[1:]) == ["a", "b", "c"]
    assert root.total.occurrences == 3


def test_long_chains_do_not_recurse():
    count = 5_000
    runs = tuple(OpRun(f"n{k}", "Op", "CPU:0", "", k, k + 1) for k in range(count))
    profile = StepProfile("chain", runs, (), 1e-6, inputs={f"n{k}": (f"n{k - 1}",) for k in range(1, count)})
    node = grow_tree(profile, TreeOptions(by="graph", depth=count))
    depth = 0
    while node.children:
        (node,) = node.children
        depth += 1
    assert depth == count


def test_op_types_hold_their_nodes():
    root = grow(by="op", depth=2, order_by="name")
    assert [node.name for node in root.children] == sorted(node.name for node in root.children)
    products = next(node for node in root.children if node.name == "MatMul")
    assert {child.name for child in products.children} == {"net/dense/MatMul", "net/dense/MatMul_1"}


def test_lines_of_code_hold_what_they_made():
    root = grow(by="code")
    main = next(node for node in root.children if "train.py" in node.name)
    assert [child.name for child in main.children] == ["/models/net.py:12 call", "/models/net.py:13 call"]
    assert main.total.time_s == pytest.approx(50e-6)
    assert any(node.name == NO_LINE for node in root.children)


def test_lines_that_led_to_the_step_are_left_out():
    runs = tuple(OpRun(name, "Op", "CPU:0", "", k, k + 1) for k, name in enumerate("ab"))
    way = tuple(SourceLine("/run.py", k, "start") for k in range(40))
    sources = {"a": (*way, SourceLine("/net.py", 1, "call")), "b": (*way, SourceLine("/net.py", 2, "call"))}
    root = grow_tree(StepProfile("step", runs, (), 2e-9, sources=sources), TreeOptions(by="code"))
    assert names(root) == ["(step)", "/run.py:39 start", "/net.py:1 call", "/net.py:2 call"]


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        ({"min_time_s": 35e-6}, {"net/dense/MatMul", "net/dense/Wait", "net/dense/MatMul_1"}),
        ({"min_accelerator_time_s": 1e-6}, {"net/dense/MatMul_1"}),
        ({"min_host_time_s": 35e-6}, {"net/dense/MatMul", "net/dense/Wait", "net/dense/MatMul_1"}),
        ({"min_bytes": 1}, {"net/dense/MatMul"}),
        ({"min_peak_bytes": profiles.MIB + 1}, {"net/dense/MatMul"}),
        ({"min_residual_bytes": 1}, {"net/dense/Relu"}),
        ({"min_output_bytes": 1}, {"net/dense/Relu"}),
        ({"min_parameters": 1}, {"net/dense/ReadVariableOp"}),
        ({"min_flops": 1e6}, {"net/dense/MatMul", "net/dense/MatMul_1"}),
        ({"min_occurrences": 2}, set()),
    ],
)
def test_each_threshold_keeps_what_reaches_it(option, kept):
    shown = names(grow(depth=9, **option))
    assert {name for name in shown if name.count("/") == 2} == kept
    assert grow(depth=9, **option).total == grow(depth=9).total  # what is hidden counts all the same


def test_names_are_shown_hidden_trimmed_and_started_from():
    assert "net/dense/Relu" not in names(grow(depth=9, hide=(".*Relu",)))
    hidden_scope = grow(depth=9, hide=("net/dense",))
    net = next(node for node in hidden_scope.children if node.name == "net")
    assert "net/dense/MatMul" in [child.name for child in net.children]  # moves up
    assert names(grow(depth=9, show=(".*MatMul.*",))) == ["(step)", "net/dense/MatMul_1", "net/dense/MatMul"]
    assert "net/dense/MatMul" not in names(grow(depth=9, trim=("net/dense",)))
    started = grow(depth=9, start=("net/dense",))
    assert [child.name for child in started.children] == ["net/dense"]
    assert started.total.time_s == pytest.approx(160e-6)


def test_only_what_is_asked_for_counts():
    forward = grow(account=("MatMul",))
    assert forward.total.time_s == pytest.approx(110e-6)
    assert grow(account=("GPU:0",)).total.accelerator_time_s == pytest.approx(30e-6)
    assert grow(account=("_trainable_variables",)).total.parameters == 1024
    assert grow(account=("Relu",)).total.parameters == 0
    shown = grow(depth=9, show=(".*Relu",), displayed_only=True)
    assert shown.total.time_s == pytest.approx(10e-6)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"by": "name"}, "by='name'"),
        ({"order_by": "weight"}, "order_by"),
        ({"columns": ("time", "weight")}, "weight"),
        ({"depth": -1}, "depth=-1"),
        ({"show": ("(",)}, "not a regular expression"),
        ({"hide": ".*"}, "give several"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, part):
    with pytest.raises(ArgumentError, match=part.replace("(", r"\(")):
        TreeOptions(**options)


def test_a_start_that_matches_nothing_is_refused():
    with pytest.raises(ArgumentError, match="nothing matches"):
        grow(start=("decoder",))


def test_a_tree_prints_within_80_columns_and_is_json():
    tree = ProfileTree(grow(depth=9), TreeOptions(columns=("time", "share", "flops", "flops_per_s", "parameters", "occurrences")))
    lines = str(tree).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("(step)")
    rows = tree.to_json()["rows"]
    assert [row["name"] for row in rows] == [node.name for _, node in tree.rows()]
    assert rows[0]["total"]["time_s"] == pytest.approx(whole(profiles.small_profile()).time_s)
