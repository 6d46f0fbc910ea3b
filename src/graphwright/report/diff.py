"""The differences of two graphs, by name and by structure.

Nodes of the same name are compared field by field. Nodes that only one graph has are paired by structure: the same op type and
attributes, and corresponding inputs or readers. Such a pair is *renamed*; all others are added or removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Any

from graphwright.errors import printable
from graphwright.ir.dtypes import format_shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.jobs import as_graph
from graphwright.ir.walk import order_of
from graphwright.plain import Result
from graphwright.report.attribute_text import attribute_text
from graphwright.report.terminal_layout import PLAIN_WIDTH, wrapped
from graphwright.report.units import format_count

_IGNORED_ATTRIBUTES = frozenset({"_output_shapes", "_class"})


@dataclass(frozen=True, slots=True)
class _Difference:
    """A difference; `function` is empty in the main graph. `str()` does not name the function."""

    function: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class NodeLine(_Difference):
    """A node that only one graph has."""

    name: str
    op_type: str

    def __str__(self) -> str:
        return printable(f"{self.name} ({self.op_type})")


@dataclass(frozen=True, slots=True)
class Renamed(_Difference):
    """A node with the same structure under another name."""

    before: str
    after: str
    op_type: str

    def __str__(self) -> str:
        return printable(f"{self.before} → {self.after} ({self.op_type})")


@dataclass(frozen=True, slots=True)
class Change(_Difference):
    """A difference of a common node or signature: `what` is "op type", "device", "attribute T", "input 0", "outputs", ..."""

    name: str
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return printable(f"{name}{self.what} {self.before} → {self.after}")


@dataclass(frozen=True, slots=True)
class GraphDiff(Result):
    """The differences of two graphs; false if there are none. `str()` is a text of 80 columns."""

    before: str
    after: str
    node_count_before: int
    node_count_after: int
    added: tuple[NodeLine, ...]
    removed: tuple[NodeLine, ...]
    renamed: tuple[Renamed, ...]
    changed: tuple[Change, ...]
    rewired: tuple[Change, ...]
    interface: tuple[Change, ...]

    def __bool__(self) -> bool:
        return any(self._sections.values())

    def __str__(self) -> str:
        return self.text()

    @property
    def _sections(self) -> Mapping[str, Sequence[_Difference]]:
        return {
            "Inputs, outputs, signatures": self.interface,
            "Added": self.added,
            "Removed": self.removed,
            "Renamed": self.renamed,
            "Changed": self.changed,
            "Rewired": self.rewired,
        }

    def text(self, rows: int = 40) -> str:
        """Return the differences as text of 80 columns, those of the main graph first, with at most `rows` per section."""
        nodes = {title: {(d.function, d.name if isinstance(d, Change) else d) for d in own} for title, own in self._sections.items()}
        counts = [f"{format_count(len(names))} {title.lower()}" for title, names in list(nodes.items())[1:] if names]
        counts += [f"{format_count(len(self.interface))} at inputs, outputs and signatures"] if self.interface else []
        sizes = f"{format_count(self.node_count_before)} nodes before, {format_count(self.node_count_after)} after"
        lines = wrapped(f"{sizes}: {', '.join(counts) or 'no difference'}", PLAIN_WIDTH)
        for title, differences in self._sections.items():
            lines += ["", title] if differences else []
            for function, group in groupby(differences[:rows], key=lambda difference: difference.function):
                lines += [f"  {line}" for line in wrapped(f"in function {function}", PLAIN_WIDTH - 2)] if function else []
                indent = "    " if function else "  "
                for difference in group:
                    first, *others = wrapped(str(difference), PLAIN_WIDTH - len(indent) - 2)
                    lines += [indent + first, *(f"{indent}  {line}" for line in others)]
            if len(differences) > rows:
                lines.append(f"  and {format_count(len(differences) - rows)} more")
        return "\n".join(lines)


def diff(before: Any, after: Any) -> GraphDiff:
    r"""Compare two graphs, or what `load` reads, with functions, inputs, outputs and signatures, in near linear time.

    The order of nodes, recorded shapes and colocation do not count. Functions are compared by name; a function that only one graph has is
    reported as one node of type `function`.

    >>> from graphwright.ir.text import from_text
    >>> before = from_text('graph "g"\n%x = Placeholder() : float32[2]\n%h = Relu(%x:0) : float32[2]\n%y = Neg(%h:0) : float32[2]')
    >>> after = from_text('graph "g"\n%x = Placeholder() : float32[2]\n%hidden = Relu(%x:0) : float32[2]\n%y = Abs(%hidden:0) : float32[2]')
    >>> print(diff(before, after))
    3 nodes before, 3 after: 1 renamed, 1 changed
    <BLANKLINE>
    Renamed
      h → hidden (Relu)
    <BLANKLINE>
    Changed
      y: op type Neg → Abs
    """
    before, after = as_graph(before), as_graph(after)
    sections: dict[str, list[Any]] = {name: [] for name in ("added", "removed", "renamed", "changed", "rewired", "interface")}
    names = _compare(before, after, "", sections)
    for name, function in before.functions.items():
        if name in after.functions:
            _compare(function.body, after.functions[name].body, name, sections)
    sections["added"] += [NodeLine(name, "function") for name in after.functions if name not in before.functions]
    sections["removed"] += [NodeLine(name, "function") for name in before.functions if name not in after.functions]
    sections["interface"] += _signatures(before, after, names)
    of_main_first = {name: tuple(sorted(section, key=lambda difference: bool(difference.function))) for name, section in sections.items()}
    return GraphDiff(before.name, after.name, _count(before), _count(after), **of_main_first)


def _count(graph: Graph) -> int:
    return len(graph) + sum(len(function.body) for function in graph.functions.values())


def _compare(before: Graph, after: Graph, function: str, sections: dict[str, list[Any]]) -> dict[str, str]:
    """Add the differences of two graphs without their functions to `sections`; return the new names of renamed nodes."""
    pairs = {node: after[node.name] for node in before.nodes if node.name in after}
    renamed = _same_structure(before, after, pairs)
    names = {old.name: new.name for old, new in renamed.items()}
    sections["renamed"] += [Renamed(old.name, new.name, old.op_type, function=function) for old, new in renamed.items()]
    pairs |= renamed
    taken = set(pairs.values())
    sections["removed"] += [NodeLine(n.name, n.op_type, function=function) for n in before.nodes if n not in pairs]
    sections["added"] += [NodeLine(n.name, n.op_type, function=function) for n in after.nodes if n not in taken]
    for old, new in pairs.items():
        for section, what, first, second in _node_changes(old, new, names):
            sections[section].append(Change(new.name, what, first or "none", second or "none", function=function))
    for role, ours, theirs in (("inputs", before.inputs, after.inputs), ("outputs", before.outputs, after.outputs)):
        first, second = (", ".join(_described(v, {}) for v in values) or "none" for values in (ours, theirs))
        if [_described(v, names) for v in ours] != [_described(v, {}) for v in theirs]:
            sections["interface"].append(Change("", role, first, second, function=function))
    return names


def _same_structure(before: Graph, after: Graph, pairs: Mapping[Node, Node]) -> dict[Node, Node]:
    """Pair nodes whose names only one graph has.

    From the inputs forward, the key of a node is its type, attributes and the partners of its inputs; from the outputs backward, its
    readers. A key with the same number of nodes on both sides makes pairs, in their order.
    """
    renamed: dict[Node, Node] = {}
    for by_inputs in (True, False, True):
        partner = {**pairs, **renamed}
        back = {new: old for old, new in partner.items()}
        ours = _keys([n for n in before.nodes if n not in partner], {node: node for node in partner}, by_inputs=by_inputs)
        theirs = _keys([n for n in after.nodes if n not in back], back, by_inputs=by_inputs)
        for key, nodes in ours.items():
            others = theirs.get(key, [])
            if len(nodes) == len(others):
                renamed.update(zip(nodes, others, strict=True))
    return renamed


def _node_changes(old: Node, new: Node, names: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the section, the part and both texts of each difference of two nodes."""
    if old.op_type != new.op_type:
        yield "changed", "op type", old.op_type, new.op_type
    if old.device != new.device:
        yield "changed", "device", old.device, new.device
    for key in sorted({*old.attrs, *new.attrs} - _IGNORED_ATTRIBUTES):
        if old.attrs.get(key) != new.attrs.get(key):
            yield "changed", f"attribute {key}", attribute_text(old.attrs.get(key)), attribute_text(new.attrs.get(key))
    for k, (ours, theirs) in enumerate(zip_longest(old.inputs, new.inputs)):
        after = theirs.name if theirs is not None else ""
        if (_followed(ours, names) if ours is not None else "") != after:
            yield "rewired", f"input {k}", ours.name if ours is not None else "", after
    waits = sorted(names.get(n.name, n.name) for n in old.control_inputs)
    waits_after = sorted(n.name for n in new.control_inputs)
    if waits != waits_after:
        yield "rewired", "control inputs", ", ".join(waits), ", ".join(waits_after)


def _keys(nodes: Sequence[Node], known: Mapping[Node, Node], *, by_inputs: bool) -> dict[object, list[Node]]:
    """Return nodes by a hash of their type, attributes, and inputs or readers; known nodes count by the names of their partners."""
    keys: dict[Node, object] = {}
    table: dict[object, list[Node]] = {}

    def key_of(node: Node) -> object:
        return known[node].name if node in known else keys.get(node, "?")

    order = order_of(nodes)
    for node in order if by_inputs else reversed(order):
        inputs = [(key_of(v.producer), v.index) for v in node.inputs]
        readers = frozenset((key_of(use.node), use.index, v.index) for v in node.outputs for use in v.uses)
        keys[node] = hash((_features(node), tuple(inputs) if by_inputs else readers))
    for node in order:
        table.setdefault(keys[node], []).append(node)
    return table


def _features(node: Node) -> object:
    return node.op_type, tuple(sorted((key, repr(value)) for key, value in node.attrs.items() if key not in _IGNORED_ATTRIBUTES))


def _followed(value: Value, names: Mapping[str, str]) -> str:
    return f"{names.get(value.producer.name, value.producer.name)}:{value.index}"


def _described(value: Value, names: Mapping[str, str]) -> str:
    return f"{_followed(value, names)} {value.dtype}{format_shape(value.shape)}"


def _signatures(before: Graph, after: Graph, names: Mapping[str, str]) -> list[Change]:
    changes: list[Change] = []
    for name in dict.fromkeys((*before.signatures, *after.signatures)):
        old, new = before.signatures.get(name), after.signatures.get(name)
        if old is None or new is None:
            changes.append(Change(name, "signature", "none" if old is None else "there", "none" if new is None else "there"))
            continue
        for kind, ours, theirs in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
            for key in dict.fromkeys((*ours, *theirs)):
                first, second = ours.get(key), theirs.get(key)
                if first is not None and second is not None and _described(first, names) == _described(second, {}):
                    continue
                texts = ["none" if v is None else _described(v, {}) for v in (first, second)]
                changes.append(Change(name, f"{kind} {key}", *texts))
    return changes
