"""How fast placed jobs run: step times and slowdowns under the totals of a moment (docs/semantics.md, section 5)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32

from jaxsched.dynamics.batching import on_cpu
from jaxsched.dynamics.footprint import Footprint
from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.resources import CPU, PCIE
from jaxsched.pytree import Pytree

UNROLL = 64  # resources per turn of a loop: one fused kernel instead of many small ones
BLOCK = 16  # jobs whose slowdowns are computed together, where not all are


class StepTime(Pytree):
    """Seconds per step under contention, but for that on shared GPUs."""

    compute: Float32[Array, "*jobs"]
    comm: Float32[Array, "*jobs"]


def slowdown_of(
    time: StepTime, rows: Footprint, stretch: Float32[Array, "*#jobs"] | float = 1.0
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


def slowdown_of_some(
    interference: Interference,
    rows: Footprint,
    total: Float32[Array, "M"],
    stale: Bool[Array, "R"],
    before: Float32[Array, "R"],
    stretch: Float32[Array, "R"] | float = 1.0,
) -> Float32[Array, "R"]:
    """`slowdown` of the jobs that are `stale` under `total`, and `before` of the others."""
    slots = stale.shape[0]
    index, count = jnp.nonzero(stale, size=slots + BLOCK, fill_value=slots)[0], stale.sum()

    def block(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        start, after = carry
        chosen = lax.dynamic_slice(index, (start,), (BLOCK,))
        some = jax.tree.map(lambda leaf: leaf[..., chosen], rows)
        on_gpu = stretch[chosen] if isinstance(stretch, Array) else stretch
        new = slowdown(interference, some, total[:, None], on_gpu)
        return start + BLOCK, after.at[chosen].set(new, mode="drop")

    return lax.while_loop(lambda carry: carry[0] < count, block, (jnp.int32(0), before))[1]


def users_of(use: Float32[Array, "M R"], resources: Bool[Array, "M"]) -> Bool[Array, "R"]:
    """Which jobs use any of `resources`, by their `use`; reads only those rows."""
    index, count = jnp.nonzero(resources, size=resources.shape[0], fill_value=0)[0], resources.sum()

    def body(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, found = carry
        return k + 1, found | (use[index[k]] > 0)

    return lax.while_loop(lambda carry: carry[0] < count, body, (jnp.int32(0), jnp.zeros(use.shape[1], bool)))[1]


def step_time(
    interference: Interference, rows: Footprint, total: Float32[Array, "M *#jobs"], *, at_once: bool = False
) -> StepTime:
    """Step times of jobs `rows` under the summed utilisation `total`, of which the rows' own use is part.

    The result has the broadcast shape of the rows' jobs and `total`'s. `at_once`: all resources in one reduction, else
    one after the other, which XLA makes into one kernel if the jobs are few.
    """
    layout, shape = rows.layout, jnp.broadcast_shapes(rows.use.shape[1:], total.shape[1:])

    def on_group(group: tuple[Array, ...]) -> Array:
        cpu, pcie, compute, all_cpu, all_pcie = group
        return compute * _factor(interference, rows, cpu, pcie, all_cpu, all_pcie)

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


def step_time_with(
    interference: Interference,
    rows: Footprint,
    total: Float32[Array, "M"],
    now: StepTime,
    added: Float32[Array, "M C"],
) -> StepTime:
    """Step times, leaves [C, R], of running jobs `rows`, leaves [..., R], if each of C placements were added.

    A stretch never falls when use is added, so only the resources that a placement touches need a look: the step takes
    the longest of what it takes `now` and of what it would take on those.

    Args: `now`, leaves [R], under `total`; `added`: use of the placements.
    """
    if not on_cpu():
        beside = jax.tree.map(lambda leaf: leaf[..., None, :], rows)
        return step_time(interference, beside, total[:, None, None] + added[..., None], at_once=True)
    layout, count = rows.layout, added.shape[1]
    nk, columns = layout.nk, jnp.arange(count)

    def over_touched(touched: Array, start: StepTime, turn) -> StepTime:
        """`turn(time, index: int32[C], some: bool[C, 1])` for each row `touched: bool[S, C]`, by column."""
        place = jnp.cumsum(touched, axis=0)
        most = place[-1]

        def body(carry: tuple[Array, StepTime]) -> tuple[Array, StepTime]:
            k, time = carry
            index = jnp.argmax(touched & (place == k + 1), axis=0)
            return k + 1, turn(time, index, (k < most)[:, None])

        return lax.while_loop(lambda carry: carry[0] < most.max(), body, (jnp.int32(0), start))[1]

    def after(index: Array) -> Array:
        return (total[index] + added[index, columns])[:, None]

    def stretched(channel: int, index: Array) -> Array:
        use = rows.use[index]
        stretch = interference(channel, rows.model, use, jnp.maximum(after(index) - use, 0.0))
        return rows.base[index - nk] * stretch

    def on_group(time: StepTime, group: Array, some: Array) -> StepTime:
        cpu, pcie = group, nk + group
        factor = _factor(interference, rows, rows.use[cpu], rows.use[pcie], after(cpu), after(pcie))
        compute = jnp.where(some, rows.compute[group] * factor, 0.0)
        comm = jnp.where(some, stretched(PCIE, pcie), 0.0)
        return StepTime(compute=jnp.maximum(time.compute, compute), comm=jnp.maximum(time.comm, comm))

    time = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), now)
    time = over_touched((added[layout.cpu] > 0) | (added[layout.pcie] > 0), time, on_group)
    for channel, part in layout.wires[1:]:

        def on_wire(time: StepTime, index: Array, some: Array, channel=channel, first=part.start) -> StepTime:
            comm = jnp.where(some, stretched(channel, first + index), 0.0)
            return time.replace(comm=jnp.maximum(time.comm, comm))

        time = over_touched(added[part] > 0, time, on_wire)
    return time


def _factor(
    interference: Interference, rows: Footprint, cpu: Array, pcie: Array, all_cpu: Array, all_pcie: Array
) -> Array:
    """How much longer the computation of `rows` takes on a group, given their own and all use of its CPU and PCIe."""

    def stretch(channel: int, own: Array, all_use: Array) -> Array:
        return interference(channel, rows.model, own, jnp.maximum(all_use - own, 0.0))

    factor = 1.0 + rows.sens_cpu * (jnp.maximum(cpu, 1.0) * stretch(CPU, cpu, all_cpu) - 1.0)
    return factor + rows.sens_pcie * (stretch(PCIE, pcie, all_pcie) - 1.0)
