"""Collections and variables, in the words that all graphs share."""

from __future__ import annotations

from collections.abc import KeysView
from typing import Any

from graphwright.editor import collecting
from graphwright.editor.variable import Variable
from graphwright.editor.views import Views
from graphwright.ir import graph as ir


class HoldsCollections(Views):
    """The part of a graph that knows its collections and variables."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        super().__init__(graph, name)
        self._variables: list[Variable] = []

    # Collections

    def collection_names_of(self, item: object) -> frozenset[str]:
        """The collections that hold an item of the IR."""
        return collecting.names_of(self._ir, item)

    def add_item_to_collection(self, name: str, item: object) -> None:
        """Add an item of the IR to a collection."""
        if name not in self.collection_names_of(item):
            self.increment_version_counter()
            collecting.add_item(self._ir, name, item)

    def remove_item_from_collections(self, item: object) -> None:
        """Take an item of the IR out of every collection."""
        self.increment_version_counter()
        collecting.remove_item(self._ir, item)

    def view_item(self, item: object) -> Any:
        """The view of an item of a collection; items that have none are returned as they are."""
        if isinstance(item, ir.Node):
            return self.view_of(item)
        if isinstance(item, ir.Value):
            return self.view_of_value(item)
        return next((v for v in self._variables if v.item is item), item)

    # Variables

    @property
    def has_passthrough_saver(self) -> bool:
        """Whether the values of variables come from a checkpoint that is passed on as it is."""
        return False

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables by name."""
        return {v.name: v for v in self._variables}

    @property
    def variable_names(self) -> KeysView[str]:
        """The names of the variables."""
        return self.variables.keys()

    def get_variable_by_name(self, name: str) -> Variable:
        """The variable with this name, for example `w:0`.

        Raises:
            KeyError: there is none.
        """
        return self.variables[name]

    def add_variable(self, name: str) -> Variable:
        """Add a variable of which only the name is known.

        Raises:
            ValueError: the name is taken, or the graph passes on a saver.
        """
        if name in self.variable_names:
            raise ValueError(f"Variable name '{name}' already in use")
        variable = Variable(self)
        self.increment_version_counter()
        variable.name = name
        self._variables.append(variable)
        return variable

    def add_variable_from_variable_def(self, variable_def: Any, skip_if_present: bool = False) -> Variable:
        """Add what a `VariableDef`, serialized or not, describes.

        Args:
            skip_if_present: whether to return a variable that is there already and equal, instead of raising.

        Raises:
            ValueError: a node that it names does not exist, or another variable has its name.
        """
        variable = Variable(self)
        variable.from_proto(variable_def, allow_duplicates=skip_if_present)
        known = self.variables
        if variable.name in known:
            return known[variable.name]
        self.increment_version_counter()
        self._variables.append(variable)
        return variable

    def adopt_variables(self) -> None:
        """Make views of the variables in the collections of the IR; one that is in several becomes one item."""
        known = self.variables
        for collection in self._ir.collections.values():
            for k, item in enumerate(collection.items):
                if collecting.is_variable(item):
                    view = Variable.of_item(self, item)
                    view = known.setdefault(view.name, view)
                    if view.item is not item:
                        collection.items[k] = view.item
        self._variables = list(known.values())
