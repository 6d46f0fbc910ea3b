"""Functions that call themselves, or each other too deep or too often, are refused before TensorFlow sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")
import graphwright as gw  # noqa: E402
from graphwright.errors import UnsupportedError  # noqa: E402
from graphwright.ir.nesting import DEEPEST  # noqa: E402


def library(count: int, calls: int, last: str) -> Any:
    """A graph that calls f0; each function calls the next one so many times, and the last one calls `last`, if anything."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    graph_def.node.add(name="x", op="Placeholder").attr["dtype"].type = tf.float32.as_datatype_enum
    call(graph_def.node.add(name="y"), "x", "f0")
    for k in range(count):
        function = graph_def.library.function.add()
        function.signature.name = f"f{k}"
        function.signature.input_arg.add(name="a", type=tf.float32.as_datatype_enum)
        function.signature.output_arg.add(name="b", type=tf.float32.as_datatype_enum)
        value, target = "a", f"f{k + 1}" if k + 1 < count else last
        for number in range(calls if target else 0):
            call(function.node_def.add(name=f"call{number}"), value, target)
            value = f"call{number}:output:0"
        function.ret["b"] = value
    return graph_def


def call(node: Any, value: str, name: str) -> None:
    node.op = "PartitionedCall"
    node.input.append(value)
    node.attr["f"].func.name = name
    node.attr["Tin"].list.type.append(tf.float32.as_datatype_enum)
    node.attr["Tout"].list.type.append(tf.float32.as_datatype_enum)


@pytest.mark.parametrize(
    ("count", "calls", "last", "message"),
    [
        (1, 1, "f0", "calls itself"),
        (3, 1, "f1", "calls itself"),
        (41, 2, "", "with all calls in place"),
        (3_000, 1, "", f"and {DEEPEST} is the limit"),
    ],
    ids=["itself", "through others", "twice each", "deep"],
)
@pytest.mark.parametrize("read", [gw.load, gw.count_flops, gw.inspect], ids=lambda f: f.__name__)
def test_refused(read: Any, count: int, calls: int, last: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(library(count, calls, last).SerializeToString())
    with pytest.raises(UnsupportedError, match=message):
        read(path)


def test_what_is_within_the_limits_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(library(DEEPEST - 1, 1, "").SerializeToString())
    assert len(gw.load(path).functions) == DEEPEST - 1
    assert gw.count_flops(path, feeds={"x": (2,)}, outputs=["y"]).total == 0
    path.write_bytes(library(10, 2, "").SerializeToString())
    assert gw.count_flops(path, feeds={"x": (2,)}, outputs=["y"]).total == 0
