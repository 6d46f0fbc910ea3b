"""Keras models trained by Levenberg-Marquardt steps, on the parts of `graphwright.least_squares`.

| file | what it holds |
|---|---|
| `least_squares_losses` | losses for `compile`: residuals of your own, roots of other losses |
| `output_losses` | losses of one output as residuals, or by their Hessian in the outputs |
| `compiled_losses` | which loss, weight and target belongs to which output |
| `model_function` | a Keras model as a function of its trainable tensors, the same at every evaluation within a step |
| `model_rows` | residuals and Jacobian of a batch, on one device or on the replicas of a strategy |
| `attempts` | steps tried at growing damping until one lowers the cost |
| `decisions` | which solver, which Jacobian, which chunks, and why |
| `trainer` | `LevenbergMarquardt`: one batch, one step |
| `lm_model` | `LMModel`: `fit` with all that Keras has |
"""
