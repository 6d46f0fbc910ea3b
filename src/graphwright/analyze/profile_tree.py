"""A measured step as a tree: by name scope, dataflow, op type or line of code.

It offers the views of `tf.compat.v1.profiler` ("scope", "graph", "op", "code") and the options of its `ProfileOptionBuilder` for any step
(`docs/profile.md` has the table). Regular expressions match whole names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, get_args

from graphwright.analyze.step_profile import READ, ProfileRow, SourceLine, StepProfile, add_up, row_of, time_of_runs_s
from graphwright.errors import ArgumentError
from graphwright.ir.garbage_collection import garbage_collection_paused

View = Literal["scope", "graph", "op", "code"]
Column = Literal[
    "time", "share", "host_time", "accelerator_time", "bytes", "peak_bytes", "residual_bytes", "output_bytes",
    "parameters", "flops", "flops_per_s", "intensity", "occurrences",
]  # fmt: skip
Order = Literal[
    "name", "time", "host_time", "accelerator_time", "bytes", "peak_bytes", "residual_bytes", "output_bytes", "parameters", "flops",
    "occurrences",
]  # fmt: skip

_ROOT = "(step)"
NO_LINE = "(no line known)"
_TRAINABLE = "_trainable_variables"
_ANY = ".*"
_NOTHING = ProfileRow("")
_DEPTH: Mapping[str, int] = {"scope": 3, "graph": 10, "op": 1, "code": 10}
_FIELD: Mapping[str, str] = {
    "time": "time_s",
    "host_time": "host_time_s",
    "accelerator_time": "accelerator_time_s",
    "bytes": "allocated_bytes",
    "intensity": "arithmetic_intensity",
}
"""Columns that have another name in a row."""


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """What to count, and what to show. A node is shown when its totals reach every `min_*`.

    Attributes:
        by: "scope": name scopes; "graph": each node above the nodes whose values it reads; "op": op types above their nodes;
            "code": lines of Python, the outermost first.
        columns: of the table.
        order_by: the column that sorts siblings, the largest first (names alphabetically).
        depth: levels to show; None for 3 scopes, 10 levels of the graph or of the code, op types without their nodes.
        account: regular expressions of op types and devices; other runs count nothing. Parameters have the type "_trainable_variables" too.
        start: the tree begins at the uppermost matching names.
        trim: names below which nothing is shown.
        show: names that are shown.
        hide: names that are hidden; their children move up.
        displayed_only: whether totals add up shown nodes only.
    """

    by: View = "scope"
    columns: Sequence[Column] = ("time", "share", "bytes", "peak_bytes", "occurrences")
    order_by: Order = "time"
    depth: int | None = None
    min_time_s: float = 0.0
    min_host_time_s: float = 0.0
    min_accelerator_time_s: float = 0.0
    min_bytes: int = 0
    min_peak_bytes: int = 0
    min_residual_bytes: int = 0
    min_output_bytes: int = 0
    min_parameters: int = 0
    min_flops: float = 0.0
    min_occurrences: int = 0
    account: Sequence[str] = (_ANY,)
    start: Sequence[str] = (_ANY,)
    trim: Sequence[str] = ()
    show: Sequence[str] = (_ANY,)
    hide: Sequence[str] = ()
    displayed_only: bool = False

    def __post_init__(self) -> None:
        _check_word("by", self.by, get_args(View))
        _check_word("order_by", self.order_by, get_args(Order))
        for column in self.columns:
            _check_word("columns", column, get_args(Column))
        if self.depth is not None and self.depth < 0:
            raise ArgumentError(f"depth={self.depth} was given", argument="depth", remedy="give 0 or more")
        for name in ("account", "start", "trim", "show", "hide"):
            _matcher(name, getattr(self, name))


def _check_word(argument: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise ArgumentError(f"{argument}={word!r} was given", argument=argument, remedy=f"give one of {', '.join(known)}")


def column_value(row: ProfileRow, column: Column | Order) -> float:
    return float(getattr(row, _FIELD.get(column, column)))


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A shown node of the tree: its own figures, the total with all nodes below it, and its shown children in order."""

    name: str
    op_type: str
    own: ProfileRow
    total: ProfileRow
    children: tuple[TreeNode, ...]


def grow_tree(profile: StepProfile, options: TreeOptions) -> TreeNode:
    """Return the tree of a measured step, in time linear in runs and nodes except for sorting."""
    with garbage_collection_paused():
        leaves = _leaves(profile, options)
        root = {"scope": _by_scope, "graph": _by_graph, "op": _by_op, "code": _by_code}[options.by](profile, leaves)
        starts = _matcher("start", options.start)
        if not starts(root.name):
            uppermost = _uppermost(root, starts)
            if not uppermost:
                raise ArgumentError(f"nothing matches start={list(options.start)}", argument="start", remedy='give e.g. (".*conv.*",)')
            root = _Draft(_ROOT, children=uppermost)
        order = _preorder(root)
        whole_s = time_of_runs_s(profile)
        for draft in reversed(order):
            draft.own = add_up(draft.name, draft.parts, whole_s)
            draft.total = add_up(draft.name, [draft.own, *(child.total for child in draft.children)], whole_s)
        _choose(order, options, whole_s)
        return _frozen(root, order, options)


def _leaves(profile: StepProfile, options: TreeOptions) -> dict[str, _Draft]:
    accounts = _matcher("account", options.account)
    leaves: dict[str, _Draft] = {}
    for run in profile.runs:
        draft = leaves.setdefault(run.name, _Draft(run.name, run.op_type))
        if accounts(run.op_type) or accounts(run.device):
            draft.parts += [row_of(run)] if draft.parts else [ProfileRow(run.name, nodes=1), row_of(run)]
    if accounts(_TRAINABLE) or accounts(READ):
        for name, elements in profile.parameters.items():
            leaves.setdefault(name, _Draft(name, READ)).parts.append(ProfileRow(name, parameters=elements))
    return leaves


# The whole tree


@dataclass(eq=False, slots=True)
class _Draft:
    name: str
    op_type: str = ""
    parts: list[ProfileRow] = field(default_factory=list[ProfileRow])
    own: ProfileRow = _NOTHING
    total: ProfileRow = _NOTHING
    children: list[_Draft] = field(default_factory=list["_Draft"])
    depth: int = 0
    shown: list[_Draft] = field(default_factory=list["_Draft"])


def _by_scope(_: StepProfile, leaves: Mapping[str, _Draft]) -> _Draft:
    """Put each node below the scopes of its name; a scope may be a node too."""
    known = {"": _Draft(_ROOT)}

    def scope(name: str) -> _Draft:
        if name not in known:
            known[name] = _Draft(name)
            scope(name.rpartition("/")[0]).children.append(known[name])
        return known[name]

    for name, leaf in leaves.items():
        draft = scope(name)
        draft.op_type, draft.parts = leaf.op_type, leaf.parts
    return known[""]


def _by_graph(profile: StepProfile, leaves: Mapping[str, _Draft]) -> _Draft:
    """Put each node below the first one that reads it, and unread nodes below the root."""
    root = _Draft(_ROOT)
    read = {before for name in leaves for before in profile.inputs.get(name, ()) if before in leaves and before != name}
    seen: set[str] = set()
    ends = [name for name in leaves if name not in read]
    for first in (*ends, *leaves):  # the second round finds what is in cycles only
        if first in seen:
            continue
        seen.add(first)
        root.children.append(leaves[first])
        stack = [first]
        while stack:
            name = stack.pop()
            for before in profile.inputs.get(name, ()):
                if before in leaves and before not in seen:
                    seen.add(before)
                    leaves[name].children.append(leaves[before])
                    stack.append(before)
    return root


def _by_op(_: StepProfile, leaves: Mapping[str, _Draft]) -> _Draft:
    types: dict[str, _Draft] = {}
    for leaf in leaves.values():
        types.setdefault(leaf.op_type, _Draft(leaf.op_type)).children.append(leaf)
    return _Draft(_ROOT, children=list(types.values()))


def _by_code(profile: StepProfile, leaves: Mapping[str, _Draft]) -> _Draft:
    """Put lines of code above the lines that they called. Of the lines that all nodes have in common only the last is kept."""
    root = _Draft(_ROOT)
    places: dict[tuple[object, ...], _Draft] = {}
    traces = [profile.sources[name] for name in leaves if profile.sources.get(name)]
    common = max(_agreement(traces) - 1, 0)
    for name, leaf in leaves.items():
        at, path = root, ()
        for line in profile.sources.get(name, ())[common:] or (NO_LINE,):
            path = (*path, line)
            below = places.get(path)
            if below is None:
                below = places[path] = _Draft(str(line))
                at.children.append(below)
            at = below
        at.parts += leaf.parts
    return root


def _agreement(traces: Sequence[Sequence[SourceLine]]) -> int:
    shared = list(traces[0]) if traces else []
    for trace in traces:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(shared, trace, strict=False))
        del shared[len(list(same)) :]
    return len(shared)


# What is shown


def _preorder(root: _Draft) -> list[_Draft]:
    order: list[_Draft] = []
    stack = [root]
    while stack:
        draft = stack.pop()
        order.append(draft)
        for child in draft.children:
            child.depth = draft.depth + 1
            stack.append(child)
    return order


def _uppermost(root: _Draft, matches: Callable[[str], bool]) -> list[_Draft]:
    matching: list[_Draft] = []
    stack = list(reversed(root.children))
    while stack:
        draft = stack.pop()
        if matches(draft.name):
            matching.append(draft)
        else:
            stack.extend(reversed(draft.children))
    return matching


def _choose(order: Sequence[_Draft], options: TreeOptions, whole_s: float) -> None:
    """Fill `shown`, from below; a hidden node passes its children up."""
    depth = _DEPTH[options.by] if options.depth is None else options.depth
    shows, hides, trims = (_matcher(name, getattr(options, name)) for name in ("show", "hide", "trim"))
    root = order[0]
    emitted: dict[_Draft, list[_Draft]] = {}
    for draft in reversed(order):
        below: list[_Draft] = []
        for child in draft.children:
            handed = emitted.pop(child)
            if len(handed) > len(below):
                below, handed = handed, below
            below.extend(handed)
        if trims(draft.name) and draft is not root:
            below = []
        if draft is root or (draft.depth <= depth and _reaches(draft.total, options) and shows(draft.name) and not hides(draft.name)):
            draft.shown = below
            emitted[draft] = [draft]
            if options.displayed_only:
                draft.total = add_up(draft.name, [draft.own, *(child.total for child in below)], whole_s)
        else:
            emitted[draft] = below


def _reaches(total: ProfileRow, options: TreeOptions) -> bool:
    amounts = {name: getattr(options, name) for name in TreeOptions.__annotations__ if name.startswith("min_")}
    return all(amount <= getattr(total, _FIELD.get(name[4:], name[4:])) for name, amount in amounts.items())


def _frozen(root: _Draft, order: Sequence[_Draft], options: TreeOptions) -> TreeNode:
    visible = {root}
    for draft in order:
        if draft in visible:
            visible.update(draft.shown)
    nodes: dict[_Draft, TreeNode] = {}
    for draft in reversed(order):
        if draft not in visible:
            continue
        children = sorted((nodes[child] for child in draft.shown), key=lambda node: node.name)
        if options.order_by != "name":
            children.sort(key=lambda node: -column_value(node.total, options.order_by))
        nodes[draft] = TreeNode(draft.name, draft.op_type, draft.own, draft.total, tuple(children))
    return nodes[root]


def _matcher(argument: str, patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a test whether one of the patterns matches a whole name. Each name is tested once."""
    if isinstance(patterns, str):
        raise ArgumentError(f"{argument}={patterns!r} was given", argument=argument, remedy="give several: a tuple or a list")
    expressions = tuple(patterns)
    if _ANY in expressions:
        return lambda _: True
    try:
        compiled = [re.compile(pattern) for pattern in expressions]
    except re.error as error:
        raise ArgumentError(
            f"{error.pattern!r} is not a regular expression: {error}", argument=argument, remedy="escape special characters"
        ) from error
    known: dict[str, bool] = {}

    def matches(name: str) -> bool:
        if name not in known:
            known[name] = any(pattern.fullmatch(name) for pattern in compiled)
        return known[name]

    return matches
