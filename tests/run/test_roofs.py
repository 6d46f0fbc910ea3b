"""The roofs of this machine are figures of a machine."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from graphwright.run.roofs import measure_roofs


def test_the_roofs_say_how_they_were_measured():
    roofs = measure_roofs()
    assert 1e8 < roofs.flops_per_s < 1e15
    assert 1e8 < roofs.bytes_per_s < 1e14
    assert roofs.how.startswith("measured here")
