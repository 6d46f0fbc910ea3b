"""Nonlinear least squares by damped Gauss-Newton steps (Levenberg-Marquardt), compiled as one TensorFlow loop.

`solve.least_squares` is what users call; the parts are importable each by itself:

| file | what it holds |
|---|---|
| `parameters` | a structure of tensors as one vector, and the names of its elements |
| `robust_losses` | losses that grow slower than the square, and how they weight residuals and Jacobian |
| `jacobians` | Jacobians in forward, reverse or per-sample mode, products with them |
| `rows` | residuals and Jacobian chunk by chunk: what is summed over rows needs the memory of a chunk |
| `linear_systems` | linearizations and their damped steps: QR, Cholesky of the Gram matrix, dual, CG |
| `krylov` | conjugate gradients in TensorFlow |
| `damping` | damping by gain ratio, Marquardt's scaling |
| `loop` | one damped step, and the loop around it |
| `stopping` | when to stop, and what may be claimed then |
| `arguments` | what a fit is told, checked |
| `covariance`, `result` | what is known about the solution |
"""
