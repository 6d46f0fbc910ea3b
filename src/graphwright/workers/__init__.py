"""Keras models trained by several workers: training that goes on after one died, checkpoints, repair. See docs/distribution.md."""
