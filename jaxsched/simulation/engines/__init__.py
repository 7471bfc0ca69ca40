"""What plays a run: the JAX environment, or the event loop compiled for CPUs."""
