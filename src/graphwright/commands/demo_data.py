"""The demo's data: crops of two microscope images that the scikit-image package ships, with derived labels.

The images are a cell in saline (quantitative phase, public domain) and stained gland tissue
(immunohistochemistry, no known restrictions). Nothing is downloaded. Neither comes with a
segmentation, so the label of a pixel is *derived*: on which side of Otsu's threshold the smoothed image
lies. That is enough to see a network learn, and no claim about biology.

As in the U-Net paper the image is continued by mirroring where the network looks past its border.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphwright.errors import ArgumentError, MissingDependencyError

_SMOOTHING_PIXELS = 2.0  # standard deviation of the smoothing before the threshold


def segmentation_batch(*, batch: int, input_size: int, output_size: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Crops of real images with a class for each pixel of their middle.

    Args:
        batch: number of crops; they are taken from the two images in turn.
        input_size: width and height of a crop in pixels, mirrored border included.
        output_size: width and height of the labelled middle in pixels.
        seed: seed of the places and mirrorings of the crops.

    Returns:
        Images of shape (batch, input_size, input_size, 1), each with mean 0 and standard deviation 1, and labels of
        shape (batch, output_size, output_size), 1 for cell or stained tissue and 0 for what surrounds it.

    Raises:
        ArgumentError: a size is not positive, or larger than the images allow.
        MissingDependencyError: scikit-image is not installed.
    """
    if batch < 1:
        raise ArgumentError(f"a batch of {batch} was asked for", argument="batch", remedy="take 1 or more")
    if not 0 < output_size <= input_size or (input_size - output_size) % 2:
        raise ArgumentError(
            f"a middle of {output_size} pixels cannot be cut from crops of {input_size}",
            where="arguments 'input_size' and 'output_size'",
            remedy="let the answer be smaller than the crop by an even number of pixels",
        )
    margin = (input_size - output_size) // 2
    sources = [_with_labels(image, bright) for image, bright in _load_images()]
    smallest = min(min(image.shape) for image, _ in sources)
    if output_size > smallest or margin >= smallest:
        raise ArgumentError(
            f"crops of {output_size} labelled pixels are larger than the images ({smallest} pixels)",
            argument="output_size",
            remedy=f"take at most {smallest}",
        )
    rng = np.random.default_rng(seed)
    images = np.empty((batch, input_size, input_size, 1), np.float32)
    labels = np.empty((batch, output_size, output_size), np.int32)
    for k in range(batch):
        image, mask = sources[k % len(sources)]
        top, left = rng.integers(0, np.subtract(image.shape, output_size), endpoint=True).tolist()
        mirrored = np.pad(image, margin, mode="reflect")
        crop = mirrored[top : top + input_size, left : left + input_size]
        label = mask[top : top + output_size, left : left + output_size]
        if rng.integers(0, 2):
            crop, label = crop[:, ::-1], label[:, ::-1]
        images[k, :, :, 0] = crop
        labels[k] = label
    return images, labels


def _load_images() -> list[tuple[NDArray[np.float32], bool]]:
    """The gray images, and whether what is looked for is brighter than its surroundings."""
    try:
        from skimage import data as skimage_data  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError as error:
        raise MissingDependencyError(
            "scikit-image, which ships the demo's images, is not installed",
            where="the demo's data",
            remedy="pip install 'graphwright[demo]'",
        ) from error
    shipped: Any = skimage_data
    cell: NDArray[np.float32] = np.asarray(shipped.cell(), np.float32)
    tissue: NDArray[np.float32] = np.asarray(shipped.immunohistochemistry(), np.float32).mean(axis=-1)
    return [(cell, True), (tissue, False)]


def _with_labels(image: NDArray[np.float32], bright: bool) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The image with mean 0 and standard deviation 1, and the label of each of its pixels."""
    from skimage import filters as skimage_filters  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    filters: Any = skimage_filters
    smooth = np.asarray(filters.gaussian(image, _SMOOTHING_PIXELS))
    above = smooth > float(filters.threshold_otsu(smooth))
    mask = (above if bright else ~above).astype(np.int32)
    normalized = (image - image.mean()) / image.std()
    return normalized.astype(np.float32), mask
