"""The state of an environment as a small picture: which GPUs are held, and by which job."""

import jax
import numpy as np
from jax.core import Tracer

from jaxsched.cluster.drawing import FREE, PARTLY, hue, servers_svg
from jaxsched.env.sharing import whole_gpus
from jaxsched.env.state import State


def state_svg(state: State) -> str | None:
    """A square per GPU, in the colour of its job; None for a state that is batched, or traced."""
    if state.clock.ndim or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(state)):
        return None
    free, running = np.asarray(state.free), state.running
    job, whole = np.asarray(running.job), np.asarray(whole_gpus(running))
    held = np.asarray(running.workers, np.int64) * (whole * (job >= 0))[..., None, None]
    partly = (np.asarray(state.shared) > 0).sum(-1)

    def fill(p: int, n: int, k: int) -> list[str]:
        whole_ones = [
            hue(int(job[p, slot])) for slot in np.flatnonzero(held[p, :, n, k]) for _ in range(held[p, slot, n, k])
        ]
        return whole_ones + [PARTLY] * int(partly[p, n, k]) + [FREE] * int(free[p, n, k])

    queued = (np.asarray(state.queue) >= 0).sum(-1)
    titles = [f"scheduler {p}: {(job[p] >= 0).sum()} running, {queued[p]} queued" for p in range(len(free))]
    titles[0] = f"boundary {int(state.clock)}; {titles[0]}"
    key = {"a job": hue(0), "free": FREE} | ({"shared": PARTLY} if state.shares else {})
    return servers_svg(free + held.sum(1) + partly, fill, titles, key)
