"""Where JAX plays runs: on the CPU, also where there is an accelerator.

A run is a long sequence of small operations. An H100 played 64 lists under a learned policy in two thirds of the time
of 14 CPU threads, and took longer to compile than that saved (docs/performance.md).
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
from jaxtyping import PyTree

from jaxsched.dynamics.batching import ACCELERATOR, CPU, traced_for
from jaxsched.errors import UserError

_here: contextvars.ContextVar[Any] = contextvars.ContextVar("here", default=None)  # a `jax.Device`


def uses_accelerator(device: str) -> bool:
    """Whether runs are on an accelerator: there is one, and it was asked for or JAX may not use CPUs."""
    return jax.default_backend() != CPU and _cpu(device) is None


def check_device(device: str) -> None:
    """UserError if an accelerator is asked for and JAX has none."""
    if device == ACCELERATOR and jax.default_backend() == CPU:
        raise UserError(f"device: {ACCELERATOR}: JAX finds none here; leave it out, or see docs/howto/gpu.md")


@contextlib.contextmanager
def play_on(device: str) -> Iterator[None]:
    """What is computed within this thread is so on a CPU; with `ACCELERATOR` where JAX itself would."""
    cpu = _cpu(device)
    if cpu is None:
        yield
        return
    before = _here.set(cpu)
    try:
        with jax.default_device(cpu), traced_for(CPU):
            yield
    finally:
        _here.reset(before)


def bring_here(tree: PyTree) -> PyTree:
    """Arrays where `play_on` plays: weights that were learned on an accelerator lie there."""
    here = _here.get()
    return tree if here is None else jax.device_put(tree, here)


def _cpu(device: str) -> Any:
    """The CPU to play on where JAX would take something else; None where it may stay as it is."""
    if device == ACCELERATOR or jax.default_backend() == CPU:
        return None
    try:
        return jax.local_devices(backend=CPU)[0]
    except RuntimeError:  # JAX_PLATFORMS leaves CPUs out
        return None
