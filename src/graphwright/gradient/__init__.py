"""Gradients for less memory: `gradients` for graphs, `checkpointed` for functions."""
