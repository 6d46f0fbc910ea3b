"""Files that only one step knows: a read returns what the step wrote.

A file is *private* when its name is made of at least 128 bits of random numbers that the system draws in each run, and these numbers are
used for nothing but names of such files. So nobody else writes it, and:

- one node writes the file, one tensor and all of it;
- edges lead from that node to each node that reads the file;
- a node that renames the file runs after all readers, and the new name is in the same folder;
- no two files have one name: other texts follow the numbers.

Then a read is the tensor that was written. A file that breaks one of these conditions is not private, and its nodes keep their effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphwright.ir.constants import constant_array, text_of
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.effects import draws_from_system, joins_texts, moves_files, reads_file, writes_file
from graphwright.ir.traits.values import is_constant
from graphwright.ir.walk import paths_among

_LEAST_BITS = 128
_Pairs = list[tuple[Node, Node]]
"""Of nodes that are private, where the first of each pair surely runs before the second: edges lead from one to the other."""


@dataclass(frozen=True)
class PrivateFiles:
    """The values read from private files, by result of the read, and all nodes that draw and make the names, write, read and rename."""

    written: dict[Value, Value] = field(default_factory=dict[Value, Value])
    nodes: frozenset[Node] = frozenset()


def private_files(nodes: Sequence[Node]) -> PrivateFiles:
    runs = set(nodes)
    draws = [node for node in nodes if draws_from_system(node) and _draws_enough(node)]
    likely = [found for draw in draws if (found := _of_draw(draw, runs)) is not None]
    ordered = paths_among(pair for _, pairs in likely for pair in pairs)
    written: dict[Value, Value] = {}
    carrying: set[Node] = set()
    for found, pairs in likely:
        if ordered.issuperset(pairs):
            written |= found.written
            carrying |= found.nodes
    return PrivateFiles(written, frozenset(carrying))


def _of_draw(draw: Node, runs: set[Node]) -> tuple[PrivateFiles, _Pairs] | None:
    """Return the files named by one node's numbers, and the pairs that must be in order; None unless all of them are private."""
    names: dict[str, tuple[Value, str]] = {}  # by what stands behind the numbers: the name, and the folder
    makers: set[Node] = {draw}
    users: dict[Value, list[Node]] = {}
    stack = list(draw.outputs)
    while stack:
        value = stack.pop()
        for use in value.uses:
            reader = use.node
            if reader not in runs:
                continue
            if joins_texts(reader):
                if any(v is not value and not is_constant(v.producer) for v in reader.inputs):
                    return None
                makers.add(reader)
                stack += reader.outputs
                texts = [text_of(v) for v in reader.inputs]
                if len(reader.inputs) == 3 and reader.inputs[1] is value and len(texts[0]) == len(texts[2]) == 1:
                    [folder], [behind] = texts[0], texts[2]
                    if not (folder.endswith("/") and behind[:1] == "." and behind[1:].isdigit()) or behind in names:
                        return None
                    names[behind] = reader.outputs[0], folder
            elif writes_file(reader) or reads_file(reader) or moves_files(reader):
                if use.index != 0:
                    return None
                users.setdefault(value, []).append(reader)
            else:
                return None
    written: dict[Value, Value] = {}
    carrying, pairs = set(makers), _Pairs()
    packed = {v: reader.outputs[0] for v, _ in names.values() for reader in v.consumers if reader in makers}
    if not set(users) <= {v for v, _ in names.values()} | set(packed.values()):
        return None
    for name, folder in names.values():
        found = _of_file(users.get(name, []), users.get(packed.get(name, name), []) if name in packed else [], folder)
        if found is None:
            return None
        written |= found[0].written
        carrying |= found[0].nodes
        pairs += found[1]
    return PrivateFiles(written, frozenset(carrying)), pairs


def _of_file(users: Sequence[Node], movers: Sequence[Node], folder: str) -> tuple[PrivateFiles, _Pairs] | None:
    """Return the values read from one file, and the pairs that must be in order; None if another condition does not hold."""
    writers, readers = [n for n in users if writes_file(n)], [n for n in users if reads_file(n)]
    if len(writers) != 1 or len(writers) + len(readers) != len(users) or not all(map(moves_files, movers)):
        return None
    [writer] = writers
    if len(writer.inputs) != 4 or not _is_whole(writer):
        return None
    tensor = writer.inputs[3]
    for reader in readers:
        same = text_of(reader.inputs[1]) == text_of(writer.inputs[1]) and _is_whole(reader)
        if not same or len(reader.outputs) != 1 or reader.outputs[0].dtype != tensor.dtype:
            return None
    for mover in movers:
        target = text_of(mover.inputs[1])
        inside = len(target) == 1 and target[0].startswith(folder) and target[0][len(folder) :].isalpha()
        if not inside or mover.attrs.get("delete_old_dirs") is not False:
            return None
    found = PrivateFiles({reader.outputs[0]: tensor for reader in readers}, frozenset([writer, *readers, *movers]))
    return found, [*((writer, reader) for reader in readers), *((node, mover) for mover in movers for node in readers or [writer])]


def _is_whole(node: Node) -> bool:
    return len(text_of(node.inputs[1])) == 1 and text_of(node.inputs[2]) == ("",)


def _draws_enough(draw: Node) -> bool:
    shape = constant_array(draw.inputs[0].producer)
    size = draw.outputs[0].dtype.itemsize
    return shape is not None and shape.ndim == 1 and size is not None and int(shape.prod()) * size * 8 >= _LEAST_BITS
