"""Differentiable rigid-body dynamics, contact and trajectory optimisation on JAX.

Functions are pure and take one robot and one state; batch them with `jax.vmap`, differentiate them with
`jax.grad`, `jax.jvp` and their kin, compile them with `jax.jit`. Importing the package changes no JAX setting.
"""

from .version import __version__ as __version__
