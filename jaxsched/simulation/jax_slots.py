"""The sizes of the tables of running and queued jobs: only as large as a run needs, and never binding.

The cost of a step grows with both tables. So a run starts with small ones, stops the moment one is full (before a
scheduler has decided anything in that state), goes on with a larger one, and with a smaller one when it has been nearly
empty for long. No job's times depend on the sizes, except through the order in which float32 numbers are summed.
"""

import dataclasses

import jax
import numpy as np
from jaxtyping import Bool, Int, Shaped

from jaxsched.env.state import State

RUNNING_GROWTH, QUEUE_GROWTH = 2, 4  # each size is compiled anew
CALM_CHUNKS = 8  # a table shrinks after so many chunks that needed at most
CALM_SHARE = 0.6  # this share of the smaller one


@dataclasses.dataclass(frozen=True)
class Slots:
    """Slots per partition."""

    running: int
    queue: int


class Fitting:
    """Which sizes the tables have: grown when full, shrunk when they have been nearly empty for long."""

    def __init__(self, smallest: Slots, most_running: int) -> None:
        self.sizes = self.largest = self._smallest = smallest
        self.peak = Slots(0, 0)
        self._most_running = most_running
        self._calm: list[Slots] = []  # what the last chunks needed

    def note(self, peak_running: int, peak_queue: int, *, running_full: bool, queue_full: bool) -> bool:
        """Takes note of a chunk; True if the sizes are others now."""
        self.peak = Slots(max(self.peak.running, peak_running), max(self.peak.queue, peak_queue))
        self._calm = [*self._calm, Slots(peak_running, peak_queue)][-CALM_CHUNKS:]
        if running_full or queue_full:
            wanted = self._grown(running_full, queue_full)
        else:
            wanted = self._shrunk() if len(self._calm) == CALM_CHUNKS else self.sizes
        if wanted == self.sizes:
            return False
        self.sizes, self._calm = wanted, []
        self.largest = Slots(max(self.largest.running, wanted.running), max(self.largest.queue, wanted.queue))
        return True

    def _grown(self, running: bool, queue: bool) -> Slots:
        return Slots(
            running=min(self.sizes.running * RUNNING_GROWTH, self._most_running) if running else self.sizes.running,
            queue=self.sizes.queue * QUEUE_GROWTH if queue else self.sizes.queue,
        )

    def _shrunk(self) -> Slots:
        running = max(-(-self.sizes.running // RUNNING_GROWTH), self._smallest.running)
        queue = max(self.sizes.queue // QUEUE_GROWTH, self._smallest.queue)
        used = Slots(max(slots.running for slots in self._calm), max(slots.queue for slots in self._calm))
        return Slots(
            running=running if used.running <= CALM_SHARE * running else self.sizes.running,
            queue=queue if used.queue <= CALM_SHARE * queue else self.sizes.queue,
        )


def resize(state: State, sizes: Slots) -> State:
    """The same state with tables of `sizes` (which must hold what is in them); works with or without a leading axis."""
    host = jax.tree.map(np.asarray, state)
    running = host.running
    order = _occupied_first(running.job >= 0, sizes.running)
    axis = order.ndim - 1
    running = running.replace(footprint=jax.tree.map(lambda leaf: np.moveaxis(leaf, -1, axis), running.footprint))
    fitted = jax.tree.map(lambda leaf: _fit(leaf, order, sizes.running, 0), running)
    fitted = fitted.replace(
        footprint=jax.tree.map(lambda leaf: np.moveaxis(leaf, axis, -1), fitted.footprint),
        job=_fit(running.job, order, sizes.running, -1),
        slowdown=_fit(running.slowdown, order, sizes.running, 1.0),
    )
    queue = _fit(host.queue, _occupied_first(host.queue >= 0, sizes.queue), sizes.queue, -1)
    return jax.tree.map(jax.numpy.array, host.replace(running=fitted, queue=queue))


def _occupied_first(occupied: Bool[np.ndarray, "*batch S"], size: int) -> Int[np.ndarray, "*batch kept"]:
    """Slots in order, occupied ones first. AssertionError if some occupied one is left out."""
    assert occupied.sum(-1).max() <= size
    return np.argsort(~occupied, axis=-1, kind="stable")[..., :size]


def _fit(
    leaf: Shaped[np.ndarray, "..."], order: Int[np.ndarray, "*batch kept"], size: int, fill: float
) -> Shaped[np.ndarray, "..."]:
    """`leaf[*batch, S, ...]` in the given order of slots, filled up to `size` of them."""
    axis = order.ndim - 1
    if not leaf.shape[axis]:  # of an extension that the world does without
        return leaf
    rest = (1,) * (leaf.ndim - order.ndim)
    kept = np.take_along_axis(leaf, order.reshape(order.shape + rest), axis)
    padding = [(0, 0)] * leaf.ndim
    padding[axis] = (0, size - kept.shape[axis])
    return np.pad(kept, padding, constant_values=fill)
