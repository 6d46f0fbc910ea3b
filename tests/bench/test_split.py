"""The benchmark of steps in parts of their batch."""

import pytest

from bench.split import rows


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.tensorflow
def test_parts_take_the_memory_that_is_predicted():
    table = rows("unet", 16, [4], 2, 2.0)
    assert [row[2] for row in table] == ["plain", "4 parts", "recompute, the least found"]
    _, parts, recompute = ([float(cell) for cell in row[3:]] for row in table)
    assert parts[3] == pytest.approx(parts[2], rel=0.1)
    assert parts[3] < recompute[3]
