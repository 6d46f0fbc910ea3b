"""Which plans are compiled where none keeps the budget."""

from itertools import islice

import pytest

from graphwright.memory.xla.planning import _beside_the_least


def test_what_takes_least_is_looked_for_on_both_sides_of_the_least_so_far():
    tried = {share: round(1000 * abs(share - 0.27)) for share in (0.0, 0.2, 0.35, 0.5)}
    for share in _beside_the_least(tried):
        tried[share] = round(1000 * abs(share - 0.27))
    assert list(islice(tried, 4, None)) == pytest.approx([0.1, 0.275, 0.2375])
    assert min(tried.values()) == 5


@pytest.mark.parametrize("tried", [{0.3: 7}, {0.3: 8, 0.31: 6, 0.32: 7, 0.9: 9}])
def test_nothing_is_tried_where_the_neighbors_are_near_or_none(tried: dict[float, int]):
    assert not list(_beside_the_least(tried))
