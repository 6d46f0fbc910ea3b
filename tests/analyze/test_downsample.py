from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from graphwright.analyze.downsample import envelope, runs

VALUES = st.lists(st.integers(0, 1000), min_size=1, max_size=400)


@given(VALUES, st.integers(4, 60))
def test_the_highs_and_lows_stay(values: list[int], limit: int) -> None:
    kept = envelope(values, limit)
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    drawn = [values[position] for position in kept]
    assert max(drawn) == max(values)
    assert min(drawn) == min(values)
    assert len(kept) <= max(limit, 4) + 2


@given(VALUES, st.integers(4, 60))
def test_no_step_rises_above_its_neighborhood_on_the_chart(values: list[int], limit: int) -> None:
    """Between two points that are drawn nothing is higher than what is drawn within two runs' length."""
    kept = envelope(values, limit)
    reach = 2 * (len(values) // max(limit // 2, 1) + 1)
    for position, value in enumerate(values):
        assert value <= max(values[near] for near in kept if abs(near - position) <= reach)


@given(VALUES, st.data())
def test_a_marked_step_stays(values: list[int], data: st.DataObject) -> None:
    marked = data.draw(st.integers(0, len(values) - 1))
    assert marked in envelope(values, 4, [marked])


@given(st.lists(st.booleans(), max_size=200))
def test_runs_say_where_the_flags_are(flags: list[bool]) -> None:
    covered = [False] * len(flags)
    for first, last in runs(flags):
        covered[first : last + 1] = [True] * (last - first + 1)
    assert covered == flags


@given(st.lists(st.booleans(), max_size=200), st.integers(0, 5))
def test_merged_runs_lie_further_apart_than_the_gap(flags: list[bool], gap: int) -> None:
    merged = runs(flags, gap)
    assert all(second[0] - first[1] - 1 > gap for first, second in itertools.pairwise(merged))
    assert all(any(first <= position <= last for first, last in merged) for position, flag in enumerate(flags) if flag)
