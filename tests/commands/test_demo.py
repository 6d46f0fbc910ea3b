"""The demo's model and step."""

import numpy as np
import pytest

from graphwright.commands.demo_model import build_unet, make_demo, unet_output_size
from graphwright.errors import ArgumentError

pytest.importorskip("tensorflow")


@pytest.mark.parametrize("dropout", [0.5, 0.0])
def test_unet_has_the_parameters_of_the_paper(dropout):
    import keras

    with keras.StatelessScope():  # shapes only: no weight gets a value
        model = build_unet(input_size=572, filters=64, dropout=dropout)
    assert model.count_params() == 31_030_658
    assert model.output_shape == (None, 388, 388, 2)


def test_the_smallest_image_for_one_pooling():
    assert unet_output_size(18, 1) == 2


@pytest.mark.parametrize(("size", "poolings"), [(571, 4), (92, 4), (16, 1), (4, 1)])
def test_sizes_that_do_not_fit_the_unet_are_refused(size, poolings):
    with pytest.raises(ArgumentError, match=str(size)):
        unet_output_size(size, poolings)


def test_the_step_learns():
    demo = make_demo(input_size=188, filters=4, batch=2)
    images, labels = demo.inputs
    assert (images.shape, labels.shape) == ((2, 188, 188, 1), (2, 4, 4))
    assert set(np.unique(labels)) <= {0, 1}
    losses = [float(demo.step(*demo.inputs)) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert "188x188" in demo.description
