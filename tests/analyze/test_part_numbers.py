"""The proof of a step in parts holds for what the rewrite makes, and for nothing that was changed behind it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphwright.analyze.splitting import find_splitting
from graphwright.ir.constants import tensor_attribute
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.graph import Graph
from graphwright.ir.text import from_text
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import PART
from graphwright.transform.proof import Original, Proof
from graphwright.transform.split_batch import split_batch

STEP = """
graph "step"
inputs %x:0, %w:0
outputs %mean:0, %y:0, %dw:0
%x = Placeholder() : float32[8,4]
%w = Placeholder() : float32[4,4]
%seed = Placeholder() : int32[2]
%axes = Const() {dtype = int32, value = tensor int32[2] [0, 1]} : int32[2]
%shape = Const() {dtype = int32, value = tensor int32[2] [8, 4]} : int32[2]
%flat = Const() {dtype = int32, value = tensor int32[1] [32]} : int32[1]
%back = Const() {dtype = int32, value = tensor int32[2] [8, 4]} : int32[2]
%philox = Const() {dtype = int32, value = tensor int32[] [1]} : int32[]
%key = StatelessRandomGetKeyCounter(%seed:0) {Tseed = int32} : uint64[1], uint64[2]
%noise = StatelessRandomUniformV2(%shape:0, %key:0, %key:1, %philox:0) {dtype = float32, Tshape = int32} : float32[8,4]
%noisy = AddV2(%x:0, %noise:0) {T = float32} : float32[8,4]
%y = MatMul(%noisy:0, %w:0) {T = float32, transpose_a = false, transpose_b = false} : float32[8,4]
%line = Reshape(%y:0, %flat:0) {T = float32, Tshape = int32} : float32[32]
%z = Reshape(%line:0, %back:0) {T = float32, Tshape = int32} : float32[8,4]
%mean = Mean(%z:0, %axes:0) {T = float32, Tidx = int32, keep_dims = false} : float32[]
%dw = MatMul(%noisy:0, %z:0) {T = float32, transpose_a = true, transpose_b = false} : float32[4,4]
"""
PURE = dict.fromkeys("Mean StatelessRandomGetKeyCounter StatelessRandomUniformV2".split(), False)


def proof_of(change: Callable[[Graph], object] = lambda _: None, parts: int = 2, *, allowed: bool = True) -> Proof:
    graph = from_text(STEP)
    original = Original(graph, Purity(graph, PURE), parts=allowed)
    split = copy_graph(graph).graph
    found = find_splitting(split, Purity(split, PURE), split.inputs[:1])
    assert found is not None
    split_batch(split, Purity(split, PURE), found, parts)
    change(split)
    return original.compare(split, Purity(split, PURE))


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_parts_are_the_whole_but_for_the_order_of_sums(parts: int) -> None:
    proof = proof_of(parts=parts)
    assert proof.equal, proof.difference
    assert proof.parts == 2
    assert "equal but for the order of sums over the batch: 2 sums" in str(proof)


def test_parts_are_something_else_where_bits_are_to_be_the_same() -> None:
    assert not proof_of(allowed=False).equal


def _reads_the_other_part(graph: Graph) -> None:
    graph.replace_input(graph["y/part1"], 0, graph.value("noisy/part0"))


def _leaves_a_term_out(graph: Graph) -> None:
    graph.outputs = [*graph.outputs[:2], graph.value("dw/part0")]


def _adds_a_term_twice(graph: Graph) -> None:
    graph.replace_input(graph["dw/added1"], 1, graph.value("dw/part0"))


def _joins_in_another_order(graph: Graph) -> None:
    graph.replace_inputs(graph["y/gathered"], [graph.value("y/part1"), graph.value("y/part0"), graph["y/gathered"].inputs[2]])


def _divides_by_the_size_of_a_part(graph: Graph) -> None:
    graph.set_attr(graph["mean/count"], "value", tensor_attribute(np.array(16.0, np.float32)))


def _draws_the_same_again(graph: Graph) -> None:
    graph.replace_input(graph["noise/part1"], 2, graph.value("key:1"))


def _draws_from_another_place(graph: Graph) -> None:
    constant = graph["noise/counter1"].inputs[1].producer
    graph.set_attr(constant, "value", tensor_attribute(np.array([5, 0], np.uint64)))


def _has_another_attribute(graph: Graph) -> None:
    graph.set_attr(graph["dw/part1"], "transpose_b", True)


def _says_that_it_is_another_part(graph: Graph) -> None:
    graph.set_attr(graph["dw/part1"], PART, (0, 4, 8, -1))


def _says_that_it_is_cut_elsewhere(graph: Graph) -> None:
    graph.set_attr(graph["noise/part0"], PART, (0, 4, 8, 1))


def _takes_another_slice(graph: Graph) -> None:
    begin = graph["x/slice1"].inputs[1].producer
    graph.set_attr(begin, "value", tensor_attribute(np.array([3, 0], np.int32)))


@pytest.mark.parametrize(
    "fault",
    [
        _reads_the_other_part,
        _leaves_a_term_out,
        _adds_a_term_twice,
        _joins_in_another_order,
        _divides_by_the_size_of_a_part,
        _draws_the_same_again,
        _draws_from_another_place,
        _has_another_attribute,
        _says_that_it_is_another_part,
        _says_that_it_is_cut_elsewhere,
        _takes_another_slice,
    ],
    ids=lambda fault: fault.__name__.strip("_"),
)
def test_a_fault_is_found(fault: Callable[[Graph], object]) -> None:
    assert not proof_of(fault).equal
