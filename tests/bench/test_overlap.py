"""The benchmark of overlapping steps."""

import pytest

from bench.overlap import row


@pytest.mark.slow
@pytest.mark.tensorflow
def test_peaks_are_kept_in_both_orders():
    name, budget, *cells = row("transformer", "small", 0.8, 2)
    assert (name, budget) == ("transformer", "80%")
    recompute, _, chain, overlap, *peaks = map(float, cells)
    assert 1 < recompute < 1.3
    assert min(chain, overlap) > 0
    predicted, *measured = peaks
    assert measured == pytest.approx([predicted] * 2, rel=0.1)
