"""The order of readers in TensorFlow's table of pointers."""

from __future__ import annotations

import random

import pytest

from graphwright.analyze.executor_order import number_nodes
from graphwright.analyze.reader_tables import in_table_order, table_order
from graphwright.ir.graph import DTYPES, Graph

F32 = DTYPES["float32"]


@pytest.mark.parametrize(
    ("start", "first", "seen"),
    [
        (704, 14, [3, 8, 6, 1, 5, 0, 2, 7, 4]),
        (2656, 5, [0, 2, 4, 3, 8, 5, 6, 1, 7]),
        (736, 14, [3, 7, 5, 1, 4, 0, 2, 8, 6]),
    ],
)
def test_an_order_that_tensorflow_was_seen_to_take(start: int, first: int, seen: list[int]) -> None:
    """A function of nine arguments, each into a matrix product that is returned, ran its products in this order on one thread, in
    three processes. The last argument of the table runs first."""
    to_sink = [(1 << 20) + 252 * first, start, start + 32]
    arguments = [start + 32 * (2 + 3 * 9 + k) for k in range(9)]  # behind the edges into products and results
    walked = table_order([*to_sink, *arguments], 1)
    assert [arguments.index(a) for a in walked if a in arguments] == seen[::-1]


def readers(count: int) -> Graph:
    graph = Graph()
    x = graph.add_node("_Arg", "x", output_types=[(F32, (4,))]).outputs[0]
    for k in range(count):
        graph.add_node("Exp", f"e{k}", inputs=[x], output_types=[(F32, (4,))])
    return graph


def test_eight_readers_stay_as_they_came_and_nine_do_not() -> None:
    for count, same in ((8, True), (9, False)):
        numbered = number_nodes(readers(count))
        drawn = [in_table_order(numbered, random.Random(seed)).edges[0].data for seed in range(5)]
        assert all((data == numbered.edges[0].data) is same for data in drawn)
        assert all(sorted(data) == sorted(numbered.edges[0].data) for data in drawn)


def test_a_draw_is_one_of_few() -> None:
    """Nine edges in a row lie in two places of the table at most, so a draw says where it starts and where it breaks."""
    numbered = number_nodes(readers(9))
    drawn = {in_table_order(numbered, random.Random(seed)).edges[0].data for seed in range(500)}
    assert 16 < len(drawn) < 16 * 9 * 2  # of 362,880


def test_roots_are_drawn_too() -> None:
    graph = Graph()
    for k in range(6):
        graph.add_node("_Arg", f"x{k}", output_types=[(F32, (4,))])
    numbered = number_nodes(graph)
    drawn = {in_table_order(numbered, random.Random(seed)).roots for seed in range(20)}
    assert len(drawn) > 1
    assert all(sorted(roots) == list(range(6)) for roots in drawn)
