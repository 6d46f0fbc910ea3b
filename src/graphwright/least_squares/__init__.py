"""Nonlinear least squares by damped Gauss-Newton steps (Levenberg-Marquardt), compiled as one TensorFlow loop.

Users call `solve.least_squares`. Its parts:

| file | contents |
|---|---|
| `arguments` | checks of arguments |
| `parameters` | a structure of tensors as one vector, and the names of its elements |
| `robust_losses` | losses that grow slower than the square, as weights of residuals and Jacobian |
| `jacobians` | Jacobians in forward, reverse or per-sample mode, products with them |
| `rows` | residuals and Jacobian chunk by chunk, and sums over them |
| `linear_systems` | linearizations and their damped steps: QR, Cholesky of the Gram matrix, dual, CG; which one |
| `symmetric_blocks`, `krylov` | half of a symmetric matrix in blocks; conjugate gradients |
| `damping`, `curvature` | damping by gain ratio, Marquardt's scaling; second-order information |
| `loop` | one damped step, and the loop around it |
| `stopping` | when to stop, and what follows from it |
| `covariance`, `result`, `progress` | the solution, and the steps as callbacks see them |
"""
