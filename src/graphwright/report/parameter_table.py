"""The result of `count_parameters`: variables and constant weights by use, layer and dtype, and their use in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphwright.analyze.collections import CollectionSummary
from graphwright.analyze.lookup_tables import LookupTable
from graphwright.analyze.parameters import KINDS, Parameter, ParameterKind, ParameterSums, group_by_scope, sum_parameters
from graphwright.analyze.update_checks import Finding
from graphwright.plain import fields_json
from graphwright.report.cost_rows import in_tree_order
from graphwright.report.sheet import NO_LAYER, Block, Column, Fact, Facts, Paragraph, Printed, Sheet, Tab, Table, pairs
from graphwright.report.units import NOT_KNOWN, format_bytes, format_count, nothing_of_zero, printable


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Elements and bytes of variables by use."""

    trainable: int
    non_trainable: int
    optimizer_state: int
    trainable_bytes: int
    non_trainable_bytes: int
    optimizer_state_bytes: int


@dataclass(frozen=True, slots=True)
class SideEffect:
    """A write outside the optimizer.

    Attributes:
        effect: "moving average", "moving average of a variable", "scaling", "running total", "counter", "random state" or "assignment".
        node: that writes, behind the names of calls, branches and loops.
    """

    variable: str
    effect: str
    node: str


@dataclass(frozen=True)
class ParameterTable(Printed):
    """Parameters of a model or step. Returned by `graphwright.count_parameters`.

    Figures count elements, or bytes if their names end in `_bytes`. They leave out the parameters in `unknown`.

    Attributes:
        parameters: each variable once, then the constants that are weights.
        depth: the number of parts of a scope that `by_layer` keeps.
        step: the step of the next four attributes; "" for none.
        writes: by variable, the nodes that write it, the optimizer's included.
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
        """Elements of trained weights."""
        return self.sums.elements["trainable"]

    @property
    def non_trainable(self) -> int:
        """Elements of frozen weights and moving statistics."""
        return self.sums.elements["non-trainable"]

    @property
    def optimizer_state(self) -> int:
        """Elements that only the optimizer needs."""
        return self.sums.elements["optimizer state"]

    @property
    def other_state(self) -> int:
        """Elements of metrics, counters and states of random number generators."""
        return self.sums.elements["other state"]

    @property
    def constant(self) -> int:
        """Elements of weights that are constants of the graph."""
        return self.sums.elements["constant"]

    @property
    def trainable_bytes(self) -> int:
        """Bytes of trained weights."""
        return self.sums.nbytes["trainable"]

    @property
    def non_trainable_bytes(self) -> int:
        """Bytes of frozen weights and moving statistics."""
        return self.sums.nbytes["non-trainable"]

    @property
    def optimizer_state_bytes(self) -> int:
        """Bytes that only the optimizer needs."""
        return self.sums.nbytes["optimizer state"]

    @property
    def total(self) -> int:
        """Elements of all weights, as Keras' `count_params` counts them."""
        return self.sums.weights

    @property
    def total_bytes(self) -> int:
        """Bytes of everything, optimizer state included."""
        return self.sums.total_bytes

    @property
    def count(self) -> ParameterCount:
        """The short form of an `Inspection`; other state counts as not trainable."""
        return short_count(self.sums)

    @property
    def by_layer(self) -> Mapping[str, ParameterSums]:
        """Sums by scope, cut to `depth` parts."""
        return {scope: sum_parameters(group) for scope, group in group_by_scope(self.parameters, self.depth).items()}

    @property
    def by_dtype(self) -> Mapping[str, ParameterSums]:
        """Sums by dtype."""
        dtypes = dict.fromkeys(parameter.dtype for parameter in self.parameters)
        return {dtype: sum_parameters([p for p in self.parameters if p.dtype == dtype]) for dtype in dtypes}

    @property
    def embeddings(self) -> tuple[Parameter, ...]:
        """Parameters whose rows are looked up."""
        return tuple(p for p in self.parameters if "embedding" in p.use)

    @property
    def quantized(self) -> tuple[Parameter, ...]:
        """Weights that are stored in fewer bits than they compute with."""
        return tuple(p for p in self.parameters if "quantized" in p.use or "packed" in p.use)

    @property
    def unknown(self) -> tuple[Parameter, ...]:
        """Parameters of unknown shape."""
        return tuple(p for p in self.parameters if p.elements is None)

    def at_depth(self, depth: int | None) -> ParameterTable:
        """Return the table with scopes cut to `depth` parts; None for all parts."""
        return replace(self, depth=depth)

    def to_json(self) -> dict[str, object]:
        """Return plain numbers and text; null for an unknown shape."""
        return {
            **fields_json(self, "depth"),
            **_sums_json(self.sums),
            "total_elements": self.total,
            "parameters": [fields_json(parameter, nbytes="bytes") for parameter in self.parameters],
            "by_layer": {scope: _sums_json(sums) for scope, sums in self.by_layer.items()},
            "by_dtype": {dtype: _sums_json(sums) for dtype, sums in self.by_dtype.items()},
            "collections": {key: fields_json(collection, "key") for key, collection in self.collections.items()},
        }

    def _sheet(self) -> Sheet:
        unknown = f"; the shapes of {len(self.unknown)} are not known" if self.unknown else ""
        counts = f"{format_count(self.total)} parameters, {format_bytes(self.total_bytes)} with all state"
        more = "more scopes; a smaller depth groups them"
        blocks: list[Block] = [
            Facts(_facts(self.sums), part="always"),
            *(Paragraph(f"{warning}.", title="Warning", part="always") for warning in self.warnings),
            Table(_scopes(self), _sum_columns("scope"), title="By scope", limit=40, more=more, part="always"),
            Table(list(self.by_dtype.items()), _sum_columns("dtype"), title="By dtype", part="always"),
            Table(self.tables, _TABLES, title="Lookup tables", part="always"),
            Facts(pairs((key, _described(c)) for key, c in self.collections.items()), title="Collections", part="always"),
            Paragraph(_step_words(self), title="The step", part="always"),
            Table(self.side_effects, _SIDE_EFFECTS, title="Side effects", part="always"),
        ]
        verdict = f"{printable(self.name)}: {counts}{unknown}."
        return Sheet(verdict, (), [Tab("overview", "Overview", blocks)], list(self.how.items()))


def short_count(sums: ParameterSums) -> ParameterCount:
    """Sum up variables as an `Inspection` does: without constants, other state as not trainable."""
    elements, nbytes = sums.elements, sums.nbytes
    counts = elements["trainable"], elements["non-trainable"] + elements["other state"], elements["optimizer state"]
    sizes = nbytes["trainable"], nbytes["non-trainable"] + nbytes["other state"], nbytes["optimizer state"]
    return ParameterCount(*counts, *sizes)


def _sums_json(sums: ParameterSums) -> dict[str, object]:
    keys: dict[ParameterKind, str] = {kind: kind.replace("-", "_").replace(" ", "_") for kind in KINDS}
    figures = {f"{key}_elements": sums.elements[kind] for kind, key in keys.items()}
    figures |= {f"{key}_bytes": sums.nbytes[kind] for kind, key in keys.items()}
    return {**figures, "total_bytes": sums.total_bytes, "count": sums.count, "unknown_count": sums.unknown}


_NAMES = 4  # of a collection
_NOTES: Mapping[ParameterKind, str] = {
    "trainable": "",
    "non-trainable": ", frozen weights, moving statistics",
    "optimizer state": ", momentum and other optimizer variables",
    "other state": ", metrics, counters, states of random numbers",
    "constant": ", weights stored in the graph as constants",
}
_TABLES: Sequence[Column[LookupTable]] = (
    Column("table", lambda t: t.name, kind="name"),
    Column("op type", lambda t: t.op_type, kind="text"),
    Column("maps", lambda t: f"{t.key_dtype} to {t.value_dtype}", kind="text"),
    Column("entries", lambda t: NOT_KNOWN if t.entries is None else t.entries),
)
_SIDE_EFFECTS: Sequence[Column[SideEffect]] = (
    Column("on", lambda s: s.variable, kind="name"),
    Column("effect", lambda s: s.effect, kind="text"),
    Column("by node", lambda s: s.node, kind="text"),
)


def _facts(sums: ParameterSums) -> list[Fact]:
    kinds: list[ParameterKind] = [kind for kind in KINDS if sums.elements[kind] or kind in ("trainable", "non-trainable")]
    return [Fact(kind, format_count(sums.elements[kind]), format_bytes(sums.nbytes[kind]) + _NOTES[kind]) for kind in kinds]


def _sum_columns(heading: str) -> list[Column[tuple[str, ParameterSums]]]:
    count = nothing_of_zero(format_count)
    return [
        Column(heading, lambda r: r[0], kind="name"),
        Column("count", lambda r: r[1].count, count),
        Column("trainable", lambda r: r[1].elements["trainable"], count),
        Column("other weights", lambda r: r[1].elements["non-trainable"] + r[1].elements["constant"], count),
        Column("state", lambda r: r[1].elements["optimizer state"] + r[1].elements["other state"], count),
        Column("bytes", lambda r: r[1].total_bytes, format_bytes),
    ]


def _scopes(table: ParameterTable) -> list[tuple[str, ParameterSums]]:
    groups: dict[tuple[str, ...], list[Parameter]] = {}
    for parameter in table.parameters:
        parts = tuple(parameter.scope.split("/")[: table.depth]) if parameter.scope else (NO_LAYER,)
        for end in range(1, len(parts) + 1):
            groups.setdefault(parts[:end], []).append(parameter)
    return [("  " * (len(path) - 1) + path[-1], sum_parameters(groups[path])) for path in in_tree_order(groups)]


def _described(collection: CollectionSummary) -> str:
    items = ", ".join(collection.items[:_NAMES]) + (", ..." if len(collection.items) > _NAMES else "")
    return f"{collection.meaning}. {format_count(len(collection.items))}: {items}"


def _step_words(table: ParameterTable) -> str:
    if not table.step:
        return ""
    text = f"{table.step}: reads {format_count(len(table.reads))} variables, writes {format_count(len(table.writes))}"
    counts = Counter(effect.effect for effect in table.side_effects)
    if counts:
        text += "; by side effect " + ", ".join(f"{format_count(n)} x {effect}" for effect, n in counts.items())
    return f"{text}."
