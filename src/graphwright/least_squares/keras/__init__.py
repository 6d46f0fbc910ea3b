"""Keras models trained by Levenberg-Marquardt steps, on the parts of `graphwright.least_squares`.

| file | contents |
|---|---|
| `losses` | losses for `compile`: residuals of your own, roots of other losses |
| `output_losses` | losses of one output as residuals, or by their Hessian in the outputs |
| `compiled_losses` | loss, weight and target of each output |
| `model_function` | a Keras model as a function of its trainable tensors, the same at every evaluation within a step |
| `patch_convolutions` | convolutions whose kernel gradients vectorize over samples |
| `batch_rows` | residuals and Jacobian of a batch, on one device or on the replicas of a strategy |
| `decisions` | solver, Jacobian mode and chunks, with reasons |
| `trainer` | `LevenbergMarquardt`: one batch, one step |
| `lm_model` | `LMModel`: `fit` with all features of Keras |
"""
