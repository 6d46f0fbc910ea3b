"""What `count_parameters` gives: variables and constant weights by use, layer and dtype, and what a step does with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from graphwright.analyze.collections import CollectionSummary
from graphwright.analyze.lookup_tables import LookupTable
from graphwright.analyze.parameters import KINDS, Parameter, ParameterKind, ParameterSums, group_by_scope, sum_parameters
from graphwright.analyze.update_checks import Finding
from graphwright.plain import fields_json
from graphwright.report.draw import Printed
from graphwright.report.results import ParameterCount


@dataclass(frozen=True, slots=True)
class SideEffect:
    """A write that no optimizer does.

    Attributes:
        variable: its name.
        effect: "moving average", "moving average of a variable", "scaling", "running total", "counter", "random state" or "assignment".
        node: that writes; names of calls, branches and loops before it.
    """

    variable: str
    effect: str
    node: str


@dataclass(frozen=True)
class ParameterTable(Printed):
    """Parameters of a model or step. Returned by `graphwright.count_parameters`.

    Figures count elements; those that end in `_bytes` count bytes. A parameter whose shape is not known is in no figure, and in `unknown`.

    Attributes:
        parameters: each variable once, then the constants that are weights.
        depth: how many parts of a scope `by_layer` tells apart.
        tables: lookup tables.
        collections: of a TF1 graph, by key.
        step: which step the next four are about; "" where none was looked at.
        reads: by variable, the nodes that read it.
        writes: by variable, the nodes that write it, the optimizer's included.
        side_effects: writes that no optimizer does.
        warnings: what is likely a mistake.
        how: by figure, how it was obtained.
    """

    name: str
    parameters: tuple[Parameter, ...]
    depth: int | None
    how: Mapping[str, str]
    tables: tuple[LookupTable, ...] = ()
    collections: Mapping[str, CollectionSummary] = field(default_factory=dict[str, CollectionSummary])
    step: str = ""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    writes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    side_effects: tuple[SideEffect, ...] = ()
    warnings: tuple[Finding, ...] = ()

    @property
    def sums(self) -> ParameterSums:
        """Elements and bytes by kind."""
        return sum_parameters(self.parameters)

    @property
    def trainable(self) -> int:
        """Elements of weights that are trained."""
        return self.sums.elements["trainable"]

    @property
    def non_trainable(self) -> int:
        """Elements of weights that are not: frozen ones, moving statistics."""
        return self.sums.elements["non-trainable"]

    @property
    def optimizer_state(self) -> int:
        """Elements of what only the optimizer needs."""
        return self.sums.elements["optimizer state"]

    @property
    def other_state(self) -> int:
        """Elements of metrics, counters and states of random number generators."""
        return self.sums.elements["other state"]

    @property
    def constant(self) -> int:
        """Elements of weights that lie in the graph as constants."""
        return self.sums.elements["constant"]

    @property
    def trainable_bytes(self) -> int:
        """Bytes of weights that are trained."""
        return self.sums.nbytes["trainable"]

    @property
    def non_trainable_bytes(self) -> int:
        """Bytes of weights that are not trained."""
        return self.sums.nbytes["non-trainable"]

    @property
    def optimizer_state_bytes(self) -> int:
        """Bytes of what only the optimizer needs."""
        return self.sums.nbytes["optimizer state"]

    @property
    def total(self) -> int:
        """Elements of all weights: what Keras' `count_params` counts."""
        return self.sums.weights

    @property
    def total_bytes(self) -> int:
        """Bytes of everything, optimizer state included."""
        return self.sums.total_bytes

    @property
    def count(self) -> ParameterCount:
        """The short form that an `Inspection` has; other state counts as not trainable there."""
        return short_count(self.sums)

    @property
    def by_layer(self) -> Mapping[str, ParameterSums]:
        """Sums by scope, cut to `depth` parts."""
        return {scope: sum_parameters(group) for scope, group in group_by_scope(self.parameters, self.depth).items()}

    @property
    def by_dtype(self) -> Mapping[str, ParameterSums]:
        """Sums by dtype."""
        groups: dict[str, list[Parameter]] = {}
        for parameter in self.parameters:
            groups.setdefault(parameter.dtype, []).append(parameter)
        return {dtype: sum_parameters(group) for dtype, group in groups.items()}

    @property
    def embeddings(self) -> tuple[Parameter, ...]:
        """The parameters whose rows are looked up."""
        return tuple(p for p in self.parameters if "embedding" in p.use)

    @property
    def quantized(self) -> tuple[Parameter, ...]:
        """The weights that are stored in fewer bits than they compute with."""
        return tuple(p for p in self.parameters if "quantized" in p.use or "packed" in p.use)

    @property
    def unknown(self) -> tuple[Parameter, ...]:
        """The parameters whose shape is not known."""
        return tuple(p for p in self.parameters if p.elements is None)

    def at_depth(self, depth: int | None) -> ParameterTable:
        """The same table with layers told apart by `depth` parts of their scopes; None for all parts."""
        return replace(self, depth=depth)

    def to_json(self) -> dict[str, object]:
        """Plain numbers and text, as docs/json.md lists them; null where a shape is not known."""
        return {
            **fields_json(self, "depth"),
            **_sums_json(self.sums),
            "total_elements": self.total,
            "parameters": [fields_json(parameter, nbytes="bytes") for parameter in self.parameters],
            "by_layer": {scope: _sums_json(sums) for scope, sums in self.by_layer.items()},
            "by_dtype": {dtype: _sums_json(sums) for dtype, sums in self.by_dtype.items()},
            "collections": {key: fields_json(collection, "key") for key, collection in self.collections.items()},
        }


def short_count(sums: ParameterSums) -> ParameterCount:
    """Sums by kind in the form that an `Inspection` has: constants are no variables, other state is not trainable."""
    elements, nbytes = sums.elements, sums.nbytes
    return ParameterCount(
        elements["trainable"],
        elements["non-trainable"] + elements["other state"],
        elements["optimizer state"],
        nbytes["trainable"],
        nbytes["non-trainable"] + nbytes["other state"],
        nbytes["optimizer state"],
    )


def _key(kind: ParameterKind) -> str:
    return kind.replace("-", "_").replace(" ", "_")


def _sums_json(sums: ParameterSums) -> dict[str, object]:
    return {
        **{f"{_key(kind)}_elements": sums.elements[kind] for kind in KINDS},
        **{f"{_key(kind)}_bytes": sums.nbytes[kind] for kind in KINDS},
        "total_bytes": sums.total_bytes,
        "count": sums.count,
        "unknown_count": sums.unknown,
    }
