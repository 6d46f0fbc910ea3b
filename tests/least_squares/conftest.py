"""What the tests of least squares share: a curve, its data, and fits that are traced once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def decay() -> tuple[Any, np.ndarray, np.ndarray]:
    """Residuals of `height * exp(-rate * x) + floor`, and noisy data: (residuals, x, y)."""
    import tensorflow as tf

    x = np.linspace(0.0, 5.0, 30)
    y = 3.0 * np.exp(-0.8 * x) + 0.5 + 0.05 * np.random.default_rng(0).standard_normal(30)

    def residuals(p: Any, x: Any, y: Any) -> Any:
        return p[0] * tf.exp(-p[1] * x) + p[2] - y

    return residuals, x, y
