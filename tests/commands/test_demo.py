"""The demo's model and step."""

import numpy as np
import pytest

from graphwright.commands.demo_model import build_unet, make_demo
from graphwright.errors import ArgumentError

pytest.importorskip("tensorflow")


def test_unet_has_the_parameters_of_the_paper():
    import keras

    with keras.StatelessScope():  # shapes only: no weight gets a value
        model = build_unet(572, 64)
    assert model.count_params() == 31_030_658
    assert model.output_shape == (None, 388, 388, 2)


@pytest.mark.parametrize("size", [571, 92])
def test_sizes_that_do_not_fit_the_unet_are_refused(size):
    with pytest.raises(ArgumentError, match=str(size)):
        build_unet(size, 4)


def test_the_step_learns():
    demo = make_demo(input_size=188, filters=4, batch=2)
    images, labels = demo.inputs
    assert (images.shape, labels.shape) == ((2, 188, 188, 1), (2, 4, 4))
    assert set(np.unique(labels)) <= {0, 1}
    losses = [float(demo.step(*demo.inputs)) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert "188x188" in demo.description
