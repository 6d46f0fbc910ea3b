"""In which order TensorFlow walks the readers of a node: as they came up to eight, else as a hash table of pointers has them.

The readers of a node are edges in an `EdgeSet`. Its ninth moves all of them to an open-addressed table whose place for an edge follows
from the edge's address. Addresses are chance, but not free: the edges of a graph lie one behind the other, 32 bytes each, in
blocks of 8 KiB, and eight in a row want the same place. So the order is one of a few rotations and interleavings of the order
in which the edges were made, not any order, and `in_table_order` draws the addresses of the blocks, nothing else.

The graph that is executed is the copy of a copy: each copy adds the edge from source to sink anew to the one that every graph has
from the start, so three of those are among the edges of the node that everything without inputs waits for (`Numbered.roots`).

Sources, TensorFlow 2.21: graph/edgeset.cc, lib/gtl/flatrep.h, platform/hash.h, lib/core/arena.cc, graph/graph.cc (`AddEdge`, `Copy`),
common_runtime/graph_optimizer.cc. Checked against the order that TensorFlow's trace shows for functions of 6 to 100 arguments.

Gap: edges that the optimizer of a device's graph removes leave holes that are used again; the copy after it has none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphwright.analyze.executor_order import Edges, Numbered

_INLINE = 8  # edges that a set keeps without a table
_WIDTH, _LOAD = 8, 0.8  # entries of a table's bucket; when a table grows
_BLOCK_BYTES, _NODE_BYTES, _EDGE_BYTES = 8192, 216, 32
_COPIES = 2
_ADDRESSES = 1 << 24  # far more than the largest table tells apart; blocks lie at multiples of 16 bytes

_Edge = tuple[int, int, int, int]  # producer, reader, input, output; -1 for the source, the sink and control edges


def in_table_order(numbered: Numbered, chance: random.Random) -> Numbered:
    """The graph with the readers of each node in an order that TensorFlow may walk them in, drawn by `chance`."""
    wide = {k for k, edges in enumerate(numbered.edges) if len(edges.data) + len(edges.control) > _INLINE}
    source_is_wide = len(numbered.roots) + 1 + _COPIES > _INLINE
    if not wide and not source_is_wide:
        return numbered
    arena = _Arena(len(numbered.nodes) + 2, chance)
    found: dict[int, dict[int, _Edge]] = {k: {} for k in wide}
    roots: dict[int, _Edge] = {}
    for position, edge in enumerate(_edges_in_order(numbered), start=_COPIES):
        if edge[0] in wide:
            found[edge[0]][arena.address(position)] = edge
        elif edge[0] < 0:
            roots[arena.address(position)] = edge
    edges = list(numbered.edges)
    for k, of_node in found.items():
        order = [of_node[a] for a in table_order(list(of_node), len(of_node)) if of_node[a][1] >= 0]
        edges[k] = Edges(tuple((r, i, o) for _, r, i, o in order if i >= 0), tuple(r for _, r, i, _ in order if i < 0))
    if not source_is_wide:
        return replace(numbered, edges=tuple(edges))
    to_sink = [arena.first_edge, *(arena.address(k) for k in range(_COPIES))]
    walked = table_order([*to_sink, *roots], 1)
    return replace(numbered, edges=tuple(edges), roots=tuple(roots[a][1] for a in walked if a in roots))


def table_order(addresses: Sequence[int], room: int) -> list[int]:
    """Addresses in the order of TensorFlow's hash table of pointers, into which they were put one by one.

    Args:
        room: for how many the table was made; it grows when it must.

    >>> table_order([32 * k for k in range(9)], 9)
    [0, 32, 256, 64, 192, 96, 128, 224, 160]
    """
    table = _empty(room)
    for count, address in enumerate(addresses):
        if count >= int(len(table) * _LOAD):
            before, table = table, _empty(count + 1)
            for old in before:
                if old is not None:
                    _put(table, old)
        _put(table, address)
    return [address for address in table if address is not None]


def _empty(room: int) -> list[int | None]:
    size = _WIDTH
    while room >= _LOAD * size:
        size *= 2
    return [None] * size


def _put(table: list[int | None], address: int) -> None:
    mask = len(table) - 1
    at, step = ((address + (address >> 6)) >> 8) & mask, 1
    while table[at] is not None:
        at, step = (at + step) & mask, step + 1
    table[at] = address


class _Arena:
    """Where the nodes and then the edges of a copied graph lie."""

    def __init__(self, nodes: int, chance: random.Random) -> None:
        self.chance = chance
        self.bases: dict[int, int] = {}
        first = 2 * _NODE_BYTES  # source and sink, then the edge between them
        self.first_edge = self._base(0) + first
        in_first = (_BLOCK_BYTES - first - _EDGE_BYTES) // _NODE_BYTES
        per_block = _BLOCK_BYTES // _NODE_BYTES
        rest = nodes - 2
        if rest <= in_first:
            self.block, used = 0, first + _EDGE_BYTES + rest * _NODE_BYTES
        else:
            more = rest - in_first
            self.block = -(-more // per_block)
            used = (more - (self.block - 1) * per_block) * _NODE_BYTES
        self.start, self.left = used, (_BLOCK_BYTES - used) // _EDGE_BYTES

    def address(self, position: int) -> int:
        """Of the edge that was made as the that many edges later than the first."""
        if position < self.left:
            return self._base(self.block) + self.start + position * _EDGE_BYTES
        block, place = divmod(position - self.left, _BLOCK_BYTES // _EDGE_BYTES)
        return self._base(self.block + 1 + block) + place * _EDGE_BYTES

    def _base(self, block: int) -> int:
        if block not in self.bases:
            self.bases[block] = 16 * self.chance.randrange(_ADDRESSES)
        return self.bases[block]


def _edges_in_order(numbered: Numbered) -> Iterator[_Edge]:
    """All edges as they are made: those into a node when it is added, back edges when all are there, then those of source and sink."""
    number = {node: k for k, node in enumerate(numbered.nodes)}
    late: list[_Edge] = []
    for k, node in enumerate(numbered.nodes):
        for i, value in enumerate(node.inputs):
            edge = (number[value.producer], k, i, value.index)
            if edge[0] < k:
                yield edge
            else:
                late.append(edge)
        for before in node.control_inputs:
            yield (number[before], k, -1, -1)
    yield from late
    roots = set(numbered.roots)
    for k, edges in enumerate(numbered.edges):
        if k in roots:
            yield (-1, k, -1, -1)
        if not edges.data and not edges.control:
            yield (k, -1, -1, -1)
