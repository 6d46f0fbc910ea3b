"""The nodes of a graph: in order, by name, and who is colocated with whom. The lowest layer of `Graph`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from heapq import heappop, heappush
from itertools import islice

from graphwright.errors import GraphError
from graphwright.ir.colocation import Colocations
from graphwright.ir.node import Links, Node, Value, check_name
from graphwright.ir.op_rule import OpRule

_LENGTHS_APART = 4
_MOST_COMPARED = 2000
_LAST_SHOWN = 5


class NodeTable:
    """Ordered nodes, each found by its name in O(1)."""

    __slots__ = ("_by_name", "_colocations", "_free_suffixes", "_links", "_suffixes", "name", "op_rule")

    def __init__(self, name: str) -> None:
        self.name = name
        self.op_rule: OpRule | None = None
        self._links: dict[Node, Links] = {}  # in order
        self._by_name: dict[str, Node] = {}
        self._suffixes: dict[str, int] = {}  # name -> every suffix below this is taken, but for those that became free
        self._free_suffixes: dict[str, list[int]] = {}  # name -> those, as a heap; some may be taken again
        self._colocations: Colocations | None = None  # made when it is first needed

    # Reading

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in order: a new tuple, in O(nodes)."""
        return tuple(self._links)

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._links))

    def __reversed__(self) -> Iterator[Node]:
        """The nodes from the last one back; the graph must not change meanwhile."""
        return reversed(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Node:
        """The node with this name, in O(1).

        Raises:
            GraphError: there is none.
        """
        try:
            return self._by_name[name]
        except KeyError:
            close = self._names_like(name)
            last = ", ".join([*self._by_name][-_LAST_SHOWN:])
            raise GraphError(
                f"there is no node named {name!r}",
                where=f"graph {self.name!r} with {len(self)} nodes",
                remedy=f"did you mean {', '.join(close)}?" if close else f"the last nodes are {last}; `graphwright show MODEL` lists all",
            ) from None

    def _names_like(self, name: str) -> list[str]:
        """Up to three names that may have been meant: with the same end, or else spelled alike."""
        end = name.rpartition("/")[2]
        same_end = list(islice((n for n in self._by_name if n.rpartition("/")[2] == end), 3))
        if same_end:
            return same_end
        # Comparing texts is slow: of a large graph only so many.
        alike = islice((n for n in self._by_name if abs(len(n) - len(name)) <= _LENGTHS_APART), _MOST_COMPARED)
        return get_close_matches(name, alike)

    def value(self, name: str) -> Value:
        """The value with this name, for example `conv:0`; `conv` means `conv:0`.

        Raises:
            GraphError: there is no such node, or it has no such output.
        """
        node_name, _, index = name.partition(":")
        node = self[node_name]
        if index and not index.isdecimal():
            raise GraphError(f"{name!r} is not the name of a value", remedy=f"write {node_name + ':0'!r} for the first output")
        position = int(index or 0)
        if position >= len(node.outputs):
            raise GraphError(f"{node_name!r} has {len(node.outputs)} outputs, got index {position}", where=f"value {name!r}")
        return node.outputs[position]

    def owns(self, node: Node) -> bool:
        """Whether the node is in this graph."""
        return node in self._links

    def check_owned(self, node: Node, where: str) -> None:
        """Refuse a node that is not in this graph.

        Args:
            where: for the message: the node or place that is to name it.

        Raises:
            GraphError: the node was removed, or belongs to another graph.
        """
        if node not in self._links:
            raise GraphError(
                f"{node.name!r} does not belong to graph {self.name!r}",
                where=f"{where!r}",
                cause="it was removed, or belongs to another graph",
            )

    def unique_name(self, name: str) -> str:
        """The name itself when it is free, else with the first free suffix `_1`, `_2`, ..."""
        if name not in self._by_name:
            return name
        free = self._free_suffixes.get(name, [])
        while free and f"{name}_{free[0]}" in self._by_name:
            heappop(free)
        if free:
            return f"{name}_{free[0]}"
        k = self._suffixes.get(name, 1)
        while f"{name}_{k}" in self._by_name:
            k += 1
        self._suffixes[name] = k
        return f"{name}_{k}"

    def colocated_with(self, node: Node) -> tuple[Node, ...]:
        """The nodes that ask to be on the device of this one (`loc:@` in their attribute `_class`)."""
        if self._colocations is None:
            self._colocations = Colocations(self._links)
        return self._colocations.members(node.name)

    # Names and order

    def rename(self, node: Node, name: str) -> None:
        """Give a node another name; its place in the order stays, and colocation constraints follow.

        Raises:
            GraphError: the name is empty or taken, or the node belongs to another graph.
        """
        self.rename_many({node: name})

    def rename_many(self, name_of: Mapping[Node, str]) -> None:
        """Give nodes other names, all at the same time, so that two can exchange theirs.

        Raises:
            GraphError: a name is empty, given twice or taken by a node that keeps it, or a node belongs to another graph.
        """
        given: dict[str, Node] = {}
        for node, name in name_of.items():
            self.check_owned(node, name)
            if name in given:
                raise GraphError(f"{given[name].name!r} and {node.name!r} cannot both be renamed to {name!r}", where=f"graph {self.name!r}")
            if self._by_name.get(name) not in name_of:
                self._check_free(name)
            given[name] = node
        changed = {node: name for node, name in name_of.items() if name != node.name}
        if not changed:
            return
        if self._colocations is None:
            self._colocations = Colocations(self._links)
        self._colocations.replace({node.name: name for node, name in changed.items()})
        for node in changed:
            self._free_name(node.name)
        for node, name in changed.items():
            self._links[node].name = name
            self._by_name[name] = node

    def sort_nodes(self, order: Sequence[Node]) -> None:
        """Set the order of the nodes.

        Raises:
            GraphError: `order` does not hold each node once.
        """
        if len(order) != len(self._links) or len(set(order)) != len(order):
            raise GraphError(f"the order holds {len(set(order))} nodes, the graph {len(self._links)}", remedy="list each node once")
        for node in order:
            self.check_owned(node, "order")
        self._links = {node: self._links[node] for node in order}

    # For the layers above

    def check_new_name(self, name: str) -> None:
        """Refuse what no node of this graph can be called.

        Raises:
            GraphError: the name is empty, has a character that marks edges, or the rule for ops refuses it.
        """
        check_name(name, self.name)
        if self.op_rule is not None:
            self.op_rule.check_name(self, name)  # pyright: ignore[reportArgumentType] - this is a layer of `Graph`

    def _check_free(self, name: str) -> None:
        self.check_new_name(name)
        self._check_not_taken(name)

    def _check_not_taken(self, name: str) -> None:
        if name in self._by_name:
            raise GraphError(f"a node named {name!r} exists already", where=f"graph {self.name!r}", remedy="use graph.unique_name(name)")

    def _free_name(self, name: str) -> None:
        del self._by_name[name]
        base, _, suffix = name.rpartition("_")
        if base in self._suffixes and suffix.isascii() and suffix.isdecimal() and suffix[0] != "0" and int(suffix) < self._suffixes[base]:
            heappush(self._free_suffixes.setdefault(base, []), int(suffix))
