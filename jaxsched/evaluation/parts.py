"""What every job's completion time is made of: waiting, ideal run time, and what each cause added.

Defined in docs/semantics.md, section 10. Nothing is measured while a run goes on: `evaluation.replay` finds again who
ran beside whom.
"""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_under
from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.resources import CPU, GPU, LINK, NIC
from jaxsched.env.state import EnvParams
from jaxsched.evaluation.replay import Footprints, Readings, footprints_of, readings
from jaxsched.simulation.outcome import Outcome

CAUSES = ("sharing", "server", "network")  # co-runners on the same GPU; in the servers (CPU, PCIe, QPI); NICs and links
_NETWORK = (NIC, LINK)


@dataclasses.dataclass(frozen=True)
class Parts:
    """Seconds of every job's completion time, NaN where it has not finished; all of them add up to it."""

    queueing_s: Float[np.ndarray, "J"]  # waits after stops and failures included
    ideal_s: Float[np.ndarray, "J"]
    placement_s: Float[np.ndarray, "J"]  # spread-out places and slower GPUs; negative on faster ones
    sharing_s: Float[np.ndarray, "J"]
    server_s: Float[np.ndarray, "J"]
    network_s: Float[np.ndarray, "J"]
    restarts_s: Float[np.ndarray, "J"]
    lost_s: Float[np.ndarray, "J"]  # work that was done twice

    def total_s(self) -> Float[np.ndarray, "J"]:
        """The sum of the parts; NaN where the job has not finished."""
        return np.sum([getattr(self, name) for name in NAMES], axis=0)


NAMES = tuple(field.name for field in dataclasses.fields(Parts))
SLOWED = ("placement_s", "sharing_s", "server_s", "network_s")  # of them what is added where jobs are not stopped


def parts_of(result: Outcome, cluster: Cluster, params: EnvParams, prints: Footprints | None = None) -> Parts:
    """The parts of all jobs of a run under `params`; `prints` are its `footprints_of`, if they are there already.

    UserError unless its placements were recorded.
    """
    jobs, attempts = result.jobs, result.attempts
    known = np.where(result.finished, 0.0, np.nan)
    added = np.zeros((1 + len(CAUSES), len(jobs)))
    prints = footprints_of(attempts, jobs, cluster, params) if prints is None else prints
    for block in readings(attempts, cluster, prints):
        for row, seconds in zip(added, _lost(block, prints, params)):
            row += np.bincount(attempts.job[block.attempt], seconds, len(jobs))
    again = result.interruptions
    return Parts(
        result.queue_s + known,
        jobs.duration_s + known,
        *(added + known),
        restarts_s=known if again is None else again.restarting_s + known,
        lost_s=known if again is None else again.lost_s + again.fallen_s + known,
    )


def _lost(block: Readings, prints: Footprints, params: EnvParams) -> list[Float[np.ndarray, "E"]]:
    """Of every reading the seconds that the placement took, and those of each of `CAUSES`."""
    slow = _slowdowns(block, prints, params)
    everything = frozenset(CAUSES)
    work = block.seconds / slow[everything]
    found = [work * (slow[frozenset()] - 1.0)]
    for cause in CAUSES:
        share = np.zeros_like(work)
        for others in _subsets(everything - {cause}):
            weight = math.factorial(len(others)) * math.factorial(len(CAUSES) - 1 - len(others))
            share += weight / math.factorial(len(CAUSES)) * (slow[others | {cause}] - slow[others])
        found.append(work * share)
    return found


def _subsets(causes: frozenset[str]) -> list[frozenset[str]]:
    sizes = range(len(causes) + 1)
    return [frozenset(some) for size in sizes for some in itertools.combinations(sorted(causes), size)]


def _slowdowns(block: Readings, prints: Footprints, params: EnvParams) -> dict[frozenset[str], Float[np.ndarray, "E"]]:
    """The slowdown of every reading if only some causes were there, by those causes (docs/semantics.md, section 5)."""
    entry, attempt = block.entry, block.attempt
    sizes = np.diff(np.append(block.first, len(entry)))
    reading = np.repeat(np.arange(len(attempt)), sizes)
    models, channel, own = prints.model[attempt[reading]], prints.channel[entry], prints.own[entry]
    stretch = _stretches(params.interference, channel, models, own, block.others)
    profiles = params.profiles
    sens_cpu, sens_pcie = (np.asarray(x, np.float64)[models] for x in (profiles.sens_cpu, profiles.sens_pcie))

    is_cpu = channel == CPU
    groups = prints.groups[attempt][reading]
    pcie = np.minimum(np.arange(len(entry)) + groups, len(entry) - 1)  # of a CPU the group's PCIe
    on_gpu = _on_gpu(block, prints, params.interference)
    most = functools.partial(np.maximum.reduceat, indices=block.first)
    compute, comm = {}, {}
    for server in (False, True):
        felt = stretch if server else np.ones_like(stretch)
        factor = 1.0 + sens_cpu * (np.maximum(own, 1.0) * felt - 1.0) + sens_pcie * (felt[pcie] - 1.0)
        compute[server] = most(np.where(is_cpu, prints.compute[entry] * factor, 0.0))
        for network in (False, True):
            there = np.where(np.isin(channel, _NETWORK), network, server)
            comm[server, network] = most(prints.base[entry] * np.where(there, stretch, 1.0))
    found = {}
    for causes in _subsets(frozenset(CAUSES)):
        server, network = "server" in causes, "network" in causes
        step = compute[server] * (on_gpu if "sharing" in causes else 1.0) + comm[server, network]
        found[causes] = np.maximum(step / np.maximum(prints.ideal[attempt], 1e-9), prints.least[attempt])
    return found


def _stretches(
    interference: Interference,
    channel: Int[np.ndarray, "X"],
    model: Int[np.ndarray, "X"],
    own: Float[np.ndarray, "X"],
    others: Float[np.ndarray, "X"],
) -> Float[np.ndarray, "X"]:
    found = np.ones(len(channel))
    for number in range(GPU):
        here = np.flatnonzero((channel == number) & (others > 0))
        if here.size:
            columns = (_pad(model[here], np.int32), _pad(own[here]), _pad(others[here]))
            found[here] = np.asarray(_stretch(number, interference, *columns))[: here.size]
    return found


@functools.partial(jax.jit, static_argnums=0)
def _stretch(channel, interference, model, own, others):
    return interference(channel, model, own, others)


def _on_gpu(block: Readings, prints: Footprints, interference: Interference) -> Float[np.ndarray, "E"]:
    """How much longer each attempt computes for those on the same GPU."""
    found, attempt = np.ones(len(block.attempt)), block.attempt
    here = np.flatnonzero((prints.gpu[attempt] >= 0) & (block.pressure[:, 0] > 0))
    if here.size:
        columns = (prints.gpu, prints.model, prints.gpu_type)
        gpu, models, kinds = (_pad(values[attempt[here]], np.int32) for values in columns)
        jobs = Sharers(gpu=jnp.asarray(gpu), model=jnp.asarray(models), gpu_type=jnp.asarray(kinds))
        found[here] = np.asarray(_stretch_under(interference, jobs, _pad(block.pressure[here])))[: here.size]
    return found


_stretch_under = jax.jit(stretch_under)


def _pad(values: np.ndarray, kind: type = np.float32) -> np.ndarray:
    """With zeros at the end, to a power of two: few programs are compiled."""
    size = max(1024, 1 << (len(values) - 1).bit_length())
    return np.concatenate([values, np.zeros((size - len(values), *values.shape[1:]))]).astype(kind)
