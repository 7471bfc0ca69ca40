"""Whole runs in the JAX environment, in tables that grow with the run."""
