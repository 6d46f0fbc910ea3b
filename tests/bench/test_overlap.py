"""The benchmark of overlapping steps."""

import pytest

from bench.overlap import row


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.tensorflow
def test_peaks_are_kept_in_both_orders():
    name, batch, budget, *cells = row("transformer", "small", None, 0.8, 2)
    assert (name, budget) == ("transformer", "80%")
    assert int(batch) > 0
    plain, recompute, *ratios, order, by_the_clock, predicted, chain, overlap = map(float, cells)
    assert plain > 0
    assert 1 < recompute < 1.3
    assert len(ratios) == 4
    assert min(ratios) > 0
    assert max(abs(order), abs(by_the_clock)) < 1
    assert [chain, overlap] == pytest.approx([predicted] * 2, rel=0.1)
