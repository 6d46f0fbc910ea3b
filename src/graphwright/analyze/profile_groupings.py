"""A measured step as a whole tree: by name scope, by dataflow, by op type, or by line of code. `profile_tree` says what of it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphwright.analyze.step_profile import Figures, SourceLine, StepProfile

ROOT = "(step)"
NO_LINE = "(no line known)"


class Draft:
    """A node of the whole tree."""

    __slots__ = ("children", "depth", "figures", "name", "op_type", "shown", "total")

    def __init__(self, name: str, op_type: str = "") -> None:
        self.name = name
        self.op_type = op_type
        self.figures = Figures()
        self.total = Figures()
        self.children: list[Draft] = []
        self.depth = 0
        self.shown: list[Draft] = []


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
    root = Draft(ROOT)
    types: dict[str, Draft] = {}
    for leaf in leaves.values():
        above = types.get(leaf.op_type)
        if above is None:
            above = types[leaf.op_type] = Draft(leaf.op_type)
            root.children.append(above)
        above.children.append(leaf)
    return root


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
    if not traces:
        return 0
    shared = list(traces[0])
    for trace in traces:
        count = next((k for k, (line, other) in enumerate(zip(shared, trace, strict=False)) if line != other), min(len(shared), len(trace)))
        del shared[count:]
    return len(shared)
