"""Where JAX plays runs: on the CPU, also where there is an accelerator.

A run is a long sequence of small operations. An H100 played 64 lists under a learned policy as fast as 16 CPU cores,
after a longer time to compile (docs/performance.md).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jaxtyping import PyTree

from jaxsched.dynamics.batching import ACCELERATOR, CPU, traced_for


def on_accelerator(device: str) -> bool:
    """Whether runs are on an accelerator: there is one, and it was asked for or JAX may not use CPUs."""
    return jax.default_backend() != CPU and _cpu(device) is None


@contextlib.contextmanager
def played_on(device: str) -> Iterator[None]:
    """What is computed within this thread is so on a CPU; with `ACCELERATOR` where JAX itself would."""
    cpu = _cpu(device)
    if cpu is None:
        yield
        return
    with jax.default_device(cpu), traced_for(CPU):
        yield


def brought_here(tree: PyTree) -> PyTree:
    """Arrays that may lie elsewhere, such as weights that were learned on an accelerator."""
    here = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return tree if here is None else jax.device_put(tree, here)


def _cpu(device: str) -> Any:
    """The CPU to play on where JAX would take something else; None where it may stay as it is."""
    if device == ACCELERATOR or jax.default_backend() == CPU:
        return None
    try:
        return jax.local_devices(backend=CPU)[0]
    except RuntimeError:  # JAX_PLATFORMS leaves CPUs out
        return None
