"""How fast placed jobs run: step times and slowdowns under the totals of a moment (docs/semantics.md, section 5)."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.batching import on_cpu
from jaxsched.dynamics.footprint import Footprint
from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.occupants import Occupants, at_places, totals_at_places
from jaxsched.dynamics.resources import CPU, LINK, NIC, PCIE, QPI
from jaxsched.pytree import Pytree

UNROLL = 64  # resources per turn of a loop: one fused kernel instead of many small ones
AT_ONCE = 512  # places times placements that a CPU works out together; of more it looks at what each placement touches


class StepTime(Pytree):
    """Seconds per step under contention, but for that on shared GPUs."""

    compute: Float32[Array, "*jobs"]
    comm: Float32[Array, "*jobs"]


class Sensitivity(NamedTuple):
    """How much jobs mind what others do, as in `Footprint`."""

    model: Int32[Array, "*jobs"]
    sens_cpu: Float32[Array, "*jobs"]
    sens_pcie: Float32[Array, "*jobs"]


def slowdown_of(
    time: StepTime, rows: Footprint | Occupants, stretch: Float32[Array, "*#jobs"] | float = 1.0
) -> Float32[Array, "*#jobs"]:
    """Step time over ideal step time of `rows`, at least their least. It may be below 1 on fast GPUs.

    On a shared GPU computing takes `stretch` as long.
    """
    return jnp.maximum((time.compute * stretch + time.comm) / jnp.maximum(rows.ideal, 1e-9), rows.least)


def slowdown(
    interference: Interference,
    rows: Footprint,
    total: Float32[Array, "M *#jobs"],
    stretch: Float32[Array, "*#jobs"] | float = 1.0,
    *,
    at_once: bool = False,
) -> Float32[Array, "*#jobs"]:
    """Step time over ideal step time; arguments as of `step_time` and `slowdown_of`."""
    return slowdown_of(step_time(interference, rows, total, at_once=at_once), rows, stretch)


def step_time(
    interference: Interference, rows: Footprint, total: Float32[Array, "M *#jobs"], *, at_once: bool = False
) -> StepTime:
    """Step times of jobs `rows` under the summed utilisation `total`, of which the rows' own use is part.

    The result has the broadcast shape of the rows' jobs and `total`'s. `at_once`: all resources in one reduction, else
    one after the other, which XLA makes into one kernel if the jobs are few.
    """
    layout, shape = rows.layout, jnp.broadcast_shapes(rows.use.shape[1:], total.shape[1:])
    jobs = Sensitivity(rows.model, rows.sens_cpu, rows.sens_pcie)

    def on_group(group: tuple[Array, ...]) -> Array:
        cpu, pcie, compute, all_cpu, all_pcie = group
        return compute * _factor(interference, jobs, (cpu, pcie), (all_cpu, all_pcie))

    cpu, pcie = layout.cpu, layout.pcie
    groups = (rows.use[cpu], rows.use[pcie], rows.compute, total[cpu], total[pcie])
    compute = _longest(on_group, jnp.zeros(shape), groups, at_once)

    comm = jnp.zeros(shape)
    for channel, part in layout.wires:

        def on_resource(resource: tuple[Array, ...], channel: int = channel) -> Array:
            use, base, all_use = resource
            return base * interference(channel, rows.model, use, jnp.maximum(all_use - use, 0.0))

        base = rows.base[part.start - layout.nk : part.stop - layout.nk]
        comm = _longest(on_resource, comm, (rows.use[part], base, total[part]), at_once)
    return StepTime(compute=compute, comm=comm)


def _longest(seconds: Callable[..., Array], least: Array, resources: tuple[Array, ...], at_once: bool) -> Array:
    """The longest of `seconds` of each of `resources` (leading axis), and at least `least`; see `step_time`."""
    if at_once:
        return jnp.maximum(least, seconds(resources).max(0, initial=0.0))

    def turn(longest: Array, resource: tuple[Array, ...]) -> tuple[Array, None]:
        return jnp.maximum(longest, seconds(resource)), None

    return lax.scan(turn, least, resources, unroll=UNROLL)[0]


def step_time_of(interference: Interference, jobs: Occupants, total: Float32[Array, "M"]) -> StepTime:
    """Step times, leaves [R], of the running jobs of one partition under `total`, of which their own use is part."""
    at_places, none = totals_at_places(jobs.layout, total)[..., None], jnp.zeros_like(jobs.ideal)
    time = _with_places(StepTime(compute=none, comm=none), jobs, _at_places(interference, jobs, at_places))

    def on_link(resource: tuple[Array, ...]) -> Array:
        return _on_link(interference, jobs, *resource)

    links = (jobs.link_use, jobs.link_seconds, total[jobs.layout.link, None])
    return time.replace(comm=_longest(on_link, time.comm, links, at_once=not on_cpu()))


def step_time_with(
    interference: Interference, jobs: Occupants, total: Float32[Array, "M"], now: StepTime, added: Float32[Array, "M C"]
) -> StepTime:
    """Step times, leaves [C, R], of the running jobs of one partition if each of C placements were added.

    A stretch never falls when use is added, so only what a placement touches need a look: the step takes the longest of
    what it takes `now` and of what it would take there.

    Args: `now`, leaves [R], under `total`; `added`: use of the placements.
    """
    if on_cpu() and jobs.slot.size * added.shape[1] > AT_ONCE:
        return lax.map(lambda more: _with_one(interference, jobs, total, now, more), added.T)
    layout = jobs.layout
    after = totals_at_places(layout, total[:, None] + added)[:, :, :, None]
    time = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:, None], (*leaf.shape, added.shape[1])), now)
    time = _with_rows(time, jobs, _at_places(interference, jobs, after, further=1))
    of_links = jobs.link_use[:, None], jobs.link_seconds[:, None], (total[:, None] + added)[layout.link, :, None]
    on_links = _on_link(interference, jobs, *of_links).max(0, initial=0.0)
    return StepTime(compute=time.compute.T, comm=jnp.maximum(time.comm.T, on_links))


def _with_one(
    interference: Interference, jobs: Occupants, total: Float32[Array, "M"], now: StepTime, added: Float32[Array, "M"]
) -> StepTime:
    """`step_time_with` of one placement, server by server and link by link."""
    after, layout = total + added, jobs.layout
    at_places, links = totals_at_places(layout, after)[..., None], after[layout.link]
    servers = (totals_at_places(layout, added) > 0).any((0, 2))

    def on_server(time: StepTime, n: Array) -> StepTime:
        here = jobs.replace(slot=jobs.slot[n], use=jobs.use[:, n], seconds=jobs.seconds[:, n])
        return _with_places(time, here, _at_places(interference, here, at_places[:, n]))

    def on_link(time: StepTime, e: Array) -> StepTime:
        more = _on_link(interference, jobs, jobs.link_use[e], jobs.link_seconds[e], links[e])
        return time.replace(comm=jnp.maximum(time.comm, more))

    return _fold_where(added[layout.link] > 0, on_link, _fold_where(servers, on_server, now))


def _fold_where(
    some: Bool[Array, "S"], turn: Callable[[StepTime, Int32[Array, ""]], StepTime], start: StepTime
) -> StepTime:
    """`turn(time, index)` of every index for which there is `some`, one after the other."""

    def body(carry: tuple[Array, StepTime]) -> tuple[Array, StepTime]:
        left, time = carry
        index = jnp.argmax(left)
        return left.at[index].set(False), turn(time, index)

    return lax.while_loop(lambda carry: carry[0].any(), body, (some, start))[1]


def _at_places(
    interference: Interference, jobs: Occupants, total: Float32[Array, "channels *places"], further: int = 0
) -> tuple[Array, Array]:
    """Seconds of computation, and of communication within the server, of the job at each place under `total`.

    Args: `further`: axes of `total` beyond those of places.
    """
    (use, seconds), ones = (jobs.use, jobs.seconds), (1,) * further
    use, seconds = (leaf.reshape(*leaf.shape, *ones) for leaf in (use, seconds))
    model, sens_cpu, sens_pcie = (
        at_places(jobs, leaf).reshape(*jobs.slot.shape, *ones) for leaf in (jobs.model, jobs.sens_cpu, jobs.sens_pcie)
    )

    def stretched(channel: int) -> Array:
        others = jnp.maximum(total[channel] - use[channel], 0.0)
        return seconds[channel] * interference(channel, model, use[channel], others)

    compute = seconds[CPU] * _factor(interference, Sensitivity(model, sens_cpu, sens_pcie), use, total)
    return compute, functools.reduce(jnp.maximum, map(stretched, (PCIE, QPI, NIC)))


def _with_places(time: StepTime, jobs: Occupants, at_places: tuple[Array, Array]) -> StepTime:
    """The longer of `time`, leaves [R], and of what the jobs at places take there: computation, communication."""
    slot, values = jobs.slot.reshape(-1).astype(jnp.int32), [leaf.reshape(-1) for leaf in at_places]
    if not on_cpu():
        here = slot[:, None] == jnp.arange(jobs.ideal.shape[-1])
        compute, comm = (jnp.where(here, leaf[:, None], 0.0).max(0, initial=0.0) for leaf in values)
        return StepTime(compute=jnp.maximum(time.compute, compute), comm=jnp.maximum(time.comm, comm))

    def turn(i: Array, time: StepTime) -> StepTime:
        at, there = jnp.maximum(slot[i], 0), slot[i] >= 0

        def longer(seconds: Array, new: Array) -> Array:
            after = jnp.maximum(seconds[at], jnp.where(there, new[i], 0.0))
            return seconds.at[at].set(after, mode="promise_in_bounds")

        return StepTime(compute=longer(time.compute, values[0]), comm=longer(time.comm, values[1]))

    return lax.fori_loop(0, slot.shape[0], turn, time)


def _with_rows(time: StepTime, jobs: Occupants, at_places: tuple[Array, Array]) -> StepTime:
    """`_with_places` of several placements on a last axis.

    A row of them is scattered for each place. Times are not negative, so they are ordered as their bits are, and
    integers have an atomic maximum. On a GPU, comparing every place with every running slot takes three times as long.
    """
    slot, bits = jobs.slot.reshape(-1).astype(jnp.int32), lambda x: lax.bitcast_convert_type(x, jnp.int32)
    at = jnp.where(slot >= 0, slot, jobs.ideal.shape[-1])

    def longer(seconds: Array, new: Array) -> Array:
        after = bits(seconds).at[at].max(bits(new.reshape(-1, new.shape[-1])), mode="drop")
        return lax.bitcast_convert_type(after, jnp.float32)

    return StepTime(compute=longer(time.compute, at_places[0]), comm=longer(time.comm, at_places[1]))


def _on_link(interference: Interference, jobs: Occupants, use: Array, seconds: Array, total: Array) -> Array:
    """Seconds of communication of the running jobs on a link."""
    return seconds * interference(LINK, jobs.model, use, jnp.maximum(total - use, 0.0))


def _factor(
    interference: Interference, jobs: Sensitivity, use: Sequence[Array] | Array, total: Sequence[Array] | Array
) -> Array:
    """How much longer computation takes on a group, given own and all use of its CPU and PCIe, in this order."""

    def stretch(channel: int) -> Array:
        return interference(channel, jobs.model, use[channel], jnp.maximum(total[channel] - use[channel], 0.0))

    factor = 1.0 + jobs.sens_cpu * (jnp.maximum(use[CPU], 1.0) * stretch(CPU) - 1.0)
    return factor + jobs.sens_pcie * (stretch(PCIE) - 1.0)
