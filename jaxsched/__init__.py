"""jaxsched: GPU cluster scheduling as a pure JAX function."""

__version__ = "0.1.0"
