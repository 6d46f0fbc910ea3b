"""The demo's data and step."""

import numpy as np
import pytest

from graphwright.commands.demo_model import build_unet, make_demo, unet_output_size
from graphwright.errors import ArgumentError

pytest.importorskip("skimage")

from graphwright.commands.demo_data import segmentation_batch


@pytest.mark.parametrize("dropout", [0.5, 0.0])
def test_unet_has_the_parameters_of_the_paper(dropout):
    import keras

    with keras.StatelessScope():  # shapes alone: no weight gets a value
        model = build_unet(dropout=dropout)
    assert model.count_params() == 31_030_658
    assert model.output_shape == (None, 388, 388, 2)


def test_the_smallest_image_for_one_pooling():
    assert unet_output_size(18, 1) == 2


@pytest.mark.parametrize(("size", "poolings"), [(571, 4), (92, 4), (16, 1), (4, 1)])
def test_sizes_that_do_not_fit_the_unet_are_refused(size, poolings):
    with pytest.raises(ArgumentError, match=str(size)):
        unet_output_size(size, poolings)


def test_crops_are_real_images_with_labels_of_their_middle():
    images, labels = segmentation_batch(batch=4, input_size=572, output_size=388)
    assert images.shape == (4, 572, 572, 1)
    assert labels.shape == (4, 388, 388)
    assert set(np.unique(labels)) == {0, 1}
    assert abs(float(images.mean())) < 0.5
    middle = images[:, 92:480, 92:480, 0]
    # The cell is brighter than what is around it, stained tissue is darker.
    assert middle[0][labels[0] == 1].mean() > middle[0][labels[0] == 0].mean() + 1
    assert middle[1][labels[1] == 1].mean() < middle[1][labels[1] == 0].mean() - 1


def test_seeds_choose_the_crops():
    first, again, other = (segmentation_batch(batch=2, input_size=188, output_size=4, seed=seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_border_is_mirrored():
    # The tissue is 512 pixels wide, so this crop is all of it, with the border around it.
    images, _ = segmentation_batch(batch=2, input_size=512 + 184, output_size=512)
    image = images[1, :, :, 0]
    assert np.array_equal(image[:, :92], image[:, 93:185][:, ::-1])
    assert np.array_equal(image[-92:], image[-185:-93][::-1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch of 0"),
        ({"output_size": 600}, "cannot be cut"),
        ({"input_size": 573}, "cannot be cut"),
        ({"input_size": 772, "output_size": 588}, "larger than the images"),
    ],
)
def test_sizes_that_cannot_be_cut_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        segmentation_batch(**{"batch": 1, "input_size": 572, "output_size": 388, **options})


def test_the_step_learns():
    demo = make_demo(input_size=188, filters=4, batch=2)
    losses = [float(demo.step(*demo.inputs)) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert "188x188" in demo.description
