"""A measured step as a whole tree: by name scope, by dataflow, by op type, or by line of code. `profile_tree` says what of it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from graphwright.analyze.step_profile import Figures, SourceLine, StepProfile

ROOT = "(step)"
NO_LINE = "(no line known)"


@dataclass(eq=False, slots=True)
class Draft:
    """A node of the whole tree."""

    name: str
    op_type: str = ""
    figures: Figures = field(default_factory=Figures)
    total: Figures = field(default_factory=Figures)
    children: list[Draft] = field(default_factory=list["Draft"])
    depth: int = 0
    shown: list[Draft] = field(default_factory=list["Draft"])

    def add_up(self, below: Iterable[Draft]) -> None:
        """Make `total` its own figures and the totals of these."""
        self.total = Figures()
        for figures in (self.figures, *(draft.total for draft in below)):
            self.total.add(figures)


def by_scope(_: StepProfile, leaves: Mapping[str, Draft]) -> Draft:
    """Each node below the scopes of its name; a scope may be a node too."""
    root = Draft(ROOT)
    known: dict[str, Draft] = {}
    for name, leaf in leaves.items():
        at = name
        draft = known.get(at)
        if draft is not None:  # a scope that was there before has the name of a node
            draft.op_type, draft.figures = leaf.op_type, leaf.figures
            continue
        known[at] = below = leaf
        while True:
            at = at.rpartition("/")[0]
            if not at:
                root.children.append(below)
                break
            above = known.get(at)
            if above is not None:
                above.children.append(below)
                break
            above = known[at] = Draft(at)
            above.children.append(below)
            below = above
    return root


def by_graph(profile: StepProfile, leaves: Mapping[str, Draft]) -> Draft:
    """Each node lies below the first that reads it; what nobody reads lies below the root."""
    root = Draft(ROOT)
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


def by_op(_: StepProfile, leaves: Mapping[str, Draft]) -> Draft:
    """Each node below its op type."""
    types: dict[str, Draft] = {}
    for leaf in leaves.values():
        types.setdefault(leaf.op_type, Draft(leaf.op_type)).children.append(leaf)
    return Draft(ROOT, children=list(types.values()))


def by_code(profile: StepProfile, leaves: Mapping[str, Draft]) -> Draft:
    """Lines of code above those that they called, with the figures of what each made.

    What all lines have in common led to the step, and is left out but for the last of it.
    """
    root = Draft(ROOT)
    places: dict[tuple[object, ...], Draft] = {}
    traces = [profile.sources[name] for name in leaves if profile.sources.get(name)]
    common = max(_agreement(traces) - 1, 0)
    for name, leaf in leaves.items():
        at, path = root, ()
        for line in profile.sources.get(name, ())[common:] or (NO_LINE,):
            path = (*path, line)
            below = places.get(path)
            if below is None:
                below = places[path] = Draft(str(line))
                at.children.append(below)
            at = below
        at.figures.add(leaf.figures)
    return root


def _agreement(traces: Sequence[Sequence[SourceLine]]) -> int:
    """How many of their first lines all traces share."""
    shared = list(traces[0]) if traces else []
    for trace in traces:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(shared, trace, strict=False))
        del shared[len(list(same)) :]
    return len(shared)
