"""`Variable`: the view of a `VariableDef` in a collection. Its names refer to nodes and values, so they follow renames."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from graphwright.editor import collecting
from graphwright.errors import printable
from graphwright.ir.signature import NamedRefs
from graphwright.source.named_refs import write_refs
from graphwright.source.private_tensorflow import message_class


def _field(name: str, meaning: str) -> Any:
    return property(lambda variable: str(getattr(variable.to_proto(), name)), doc=meaning)


class Variable:
    """A variable of a TF1 graph. Get it from `Graph.add_variable` or `Graph.get_variable_by_name`."""

    __slots__ = ("_graph", "_item")

    def __init__(self, g: Any) -> None:
        if g.has_passthrough_saver:
            raise ValueError(f"Attempted to add a variable to Graph '{g.name}', which has an immutable serialized tf.Saver object.")
        self._graph = g
        self._item = NamedRefs(b"", {})

    @classmethod
    def of_item(cls, graph: Any, item: NamedRefs) -> Variable:
        """Return the view of an item of a collection."""
        view = cls.__new__(cls)
        view._graph = graph
        view._item = item
        return view

    @property
    def item(self) -> NamedRefs:
        """The item of the IR."""
        return self._item

    def __str__(self) -> str:
        return printable(f"Var[{self.name}]")

    def __repr__(self) -> str:
        return printable(
            f"Var[name={self.name}, init={self.initializer_name}, val={self.initial_value_name}, "
            f"snap={self.snapshot_name}, t={self.trainable}]"
        )

    @property
    def graph(self) -> Any:
        """Its graph."""
        return self._graph

    @property
    def name(self) -> str:
        """Its name as a tensor, such as `w:0`."""
        return str(self.to_proto().variable_name)

    @name.setter
    def name(self, value: str) -> None:
        proto = self.to_proto()
        proto.variable_name = value
        fresh = collecting.variable_item(self._graph.ir, proto)
        self._item.serialized, self._item.refs = fresh.serialized, fresh.refs

    initial_value_name = _field("initial_value_name", "The initial value, a tensor.")
    initializer_name = _field("initializer_name", "The node that assigns the initial value.")
    snapshot_name = _field("snapshot_name", "The tensor with its value.")

    @property
    def trainable(self) -> bool:
        """Whether it is trainable."""
        return bool(self.to_proto().trainable)

    def is_same_variable(self, other: Variable) -> bool:
        """Return whether both have equal fields; graph and collections are not compared."""
        fields = ("variable_name", "initial_value_name", "initializer_name", "snapshot_name", "trainable")
        mine, others = self.to_proto(), other.to_proto()
        return all(getattr(mine, field) == getattr(others, field) for field in fields)

    def from_proto(self, variable_def: Any, validate: bool = True, allow_duplicates: bool = False) -> None:
        """Take all fields of a `VariableDef`, serialized or not; with `validate`, raise a ValueError as the method `validate` does."""
        before = self._item
        self._item = collecting.variable_item(self._graph.ir, variable_def)
        try:
            if validate:
                self.validate(allow_duplicates)
        except ValueError:
            self._item = before
            raise

    def to_proto(self) -> Any:
        """Return a `VariableDef` with the current names and all other fields that it was read with."""
        proto = message_class("framework.variable", "VariableDef")()
        write_refs(self._graph.ir, self._item, proto)
        return proto

    def validate(self, allow_duplicate: bool = False) -> None:
        """Raise a ValueError if a name in it does not exist, or another variable has its name."""
        other = self._graph.variables.get(self.name)
        if other is not None and other is not self:
            if not self.is_same_variable(other):
                raise ValueError(f"Existing '{self.name}' in graph conflicts with this one ({self!r} != {other!r})")
            if not allow_duplicate:
                raise ValueError(f"Graph already has a variable called '{self.name}'")
        if not self._graph.contains_node(self.initializer_name):
            raise ValueError(f"Initializer name '{self.initializer_name}' does not correspond to any node in graph")
        for kind in ("initial_value_name", "snapshot_name"):
            if named := getattr(self, kind):
                self._graph.get_tensor_by_name(named, f"Invalid {kind.replace('_', ' ')} '{{}}': {{}}")

    @property
    def collection_names(self) -> AbstractSet[str]:
        """The names of the collections that contain it."""
        return self._graph.collection_names_of(self._item)

    def add_to_collection(self, collection_name: str) -> None:
        """Add it to a collection that does not contain it, or raise a ValueError."""
        if collection_name in self.collection_names:
            raise ValueError(f"Variable '{self.name}' already in collection '{collection_name}'")
        self._graph.add_item_to_collection(collection_name, self._item)
