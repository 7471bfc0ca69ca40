"""What jobs know of their step times: the truth, or what they have seen and a model fitted to it.

See docs/semantics.md, section 13. Who knows the truth looks up the best goodput in `Tables`; nothing here is traced.

The form of the model is Pollux' (Qiao et al., OSDI 2021). A pass without an update takes `P = ac + bc b` seconds at
local batch `b`. The network takes `N = ar + br max(r - 2, 0)` with `r` GPUs of one node, `an + bn max(r - 2, 0)` on
several nodes, and nothing with one GPU. A step takes `(P^g + N^g)^(1/g)`. A fit has the seven numbers `ac, bc, an, bn,
ar, br, g`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int
from scipy.optimize import minimize

from jaxsched.adaptive.profiles import Application
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, Own, State
from jaxsched.adaptive.tables import CANDIDATES, Plan, candidates, fewest_nodes, gains
from jaxsched.pytree import call_on_host, on_device

NUMBERS = 7
LEAST, MOST_POWER = 1e-8, 10.0  # of a number that is fitted, and of g
OF_POWER, OF_GROWTH = 1e-3, 1e-2  # what the objective adds for g, and for how the network's time grows with GPUs
ACROSS = 1.1  # times the network of one node, for several nodes that were never seen


def predict(
    fit: Float64[Array, "... 7"], nodes: Int[Array, "..."], gpus: Int[Array, "..."], local: Int[Array, "..."]
) -> tuple[Float64[Array, "..."], Float64[Array, "..."]]:
    """Seconds of a pass and of a step."""
    passes, network, power = _parts(jnp, jnp.moveaxis(fit, -1, 0), nodes, gpus, local)
    return passes, jnp.where(network > 0, _together(jnp, passes, network, power), passes)


def fit_to(seen: Float64[np.ndarray, "S 4"], width: int) -> Float64[np.ndarray, "7"]:
    """The numbers that suit what was seen best, by SciPy's L-BFGS-B from a fixed start.

    Seconds count to the nanosecond: in the last bits they differ between processors, and the search would enlarge that.

    Args:
        seen: GPUs (on the fewest nodes), local batch, seconds of a pass and of a step.
        width: GPUs of a node.
    """
    gpus, local, pass_s, step_s = np.round(seen.T, 9)  # of seconds
    pass_s = np.maximum(pass_s, 1e-9)  # some profiles say that all of a step is synchronisation
    nodes = np.ceil(gpus / width)
    network = [0.1 * step_s.mean(), 0.01 * step_s.mean()]
    start = np.array([pass_s.mean() / 2, (pass_s / local).mean() / 2, *network, *network, 1.1])
    low, high = np.array([LEAST] * 6 + [1.0]), np.array([np.inf] * 6 + [MOST_POWER])
    if len(np.unique(local)) == 1:
        low[0] = high[0] = start[0]
    within, across = (nodes == 1) & (gpus > 1), nodes > 1
    for at, there in ((2, across), (3, across & (gpus > 2)), (4, within), (5, within & (gpus > 2))):
        if not there.any():
            low[at] = high[at] = 0.0
    if not (within | across).any():
        high[6] = 1.0
    known = (nodes, gpus, local, pass_s, step_s)
    found = minimize(_objective, np.clip(start, low, high), known, "L-BFGS-B", True, bounds=[*zip(low, high)]).x
    if not across.any():
        found[2:4] = ACROSS * found[4:6]
    return found


def _parts(numpy: Any, fit: Any, nodes: Any, gpus: Any, local: Any) -> tuple[Any, Any, Any]:
    ac, bc, an, bn, ar, br, power = fit
    more = numpy.maximum(gpus - 2, 0)
    network = numpy.where(nodes > 1, an + bn * more, ar + br * more)
    return ac + bc * local, numpy.where(gpus > 1, network, 0.0), power


def _together(numpy: Any, passes: Any, network: Any, power: Any) -> Any:
    """`(P^g + N^g)^(1/g)`, N above 0, without powers of small numbers."""
    most, least = numpy.maximum(passes, network), numpy.minimum(passes, network)
    return most * (1.0 + (least / most) ** power) ** (1.0 / power)


def _objective(
    fit: np.ndarray, nodes: Any, gpus: Any, local: Any, pass_s: Any, step_s: Any
) -> tuple[float, np.ndarray]:
    """Roots of the mean squared errors of logarithms of both times, what is added to them, and the slope."""
    passes, network, power = _parts(np, fit, nodes, gpus, local)
    there = network > 0
    safe = np.where(there, network, 1.0)
    ratio = np.where(there, safe / passes, 0.0)
    share = 1.0 / (1.0 + ratio**power)  # of the step that grows with the pass
    step = np.where(there, _together(np, passes, safe, power), passes)
    more = np.maximum(gpus - 2, 0)
    zero, across, within = np.zeros_like(passes), there & (nodes > 1), there & (nodes == 1)
    of_pass = np.stack([np.ones_like(passes), local, *[zero] * 5]) / passes
    of_net = np.stack([zero, zero, across, across * more, within, within * more, zero]) / safe
    of_power = (share * np.log(passes) + (1 - share) * np.log(safe) - np.log(step)) / power
    of_step = share * of_pass + (1 - share) * of_net
    of_step[6] = np.where(there, of_power, 0.0)
    value, slope = 0.0, np.zeros(NUMBERS)
    for error, by in ((np.log(passes / pass_s), of_pass), (np.log(step / step_s), of_step)):
        root = max(float(np.sqrt(np.mean(error**2))), 1e-12)
        value, slope = value + root, slope + (by * error).mean(1) / root
    value, slope[6] = value + OF_POWER * (power - 1) ** 2, slope[6] + 2 * OF_POWER * (power - 1)
    for base, growth in ((2, 3), (4, 5)):
        if fit[base] > 0:
            rise = fit[growth] / fit[base]
            value += OF_GROWTH * rise**2
            slope[growth] += 2 * OF_GROWTH * rise / fit[base]
            slope[base] -= 2 * OF_GROWTH * rise**2 / fit[base]
    return value, slope


def make_own(apps: Mapping[str, Application], plans: Sequence[Plan], kind: str, width: int, most: int) -> Own:
    """Every batch size of every plan, on the fewest nodes of one GPU type. `most` GPUs of a job."""
    size, longest = (len(plans), most + 1, CANDIDATES), max((apps[p.application].epochs for p in plans), default=0)
    local, passes = np.ones(size, np.int32), np.zeros(size, np.int32)
    step_s, sync_s, gain = np.zeros(size), np.zeros(size), np.zeros((len(plans), longest, most + 1, CANDIDATES))
    for m, plan in enumerate(plans):
        app = apps[plan.application]
        for gpus in range(1, min(most, app.most_gpus(plan.batch)) + 1):
            b, a = candidates(app, kind, plan.batch, gpus)
            step, sync = app.step_times[kind].at(fewest_nodes(gpus, width), b) * app.limits.slower
            there = np.isfinite(step)
            local[m, gpus, : len(b)], passes[m, gpus, : len(b)] = b, a
            step_s[m, gpus, : len(b)], sync_s[m, gpus, : len(b)] = np.nan_to_num(step), np.nan_to_num(sync)
            of_epochs = np.where(there[:, None], gains(app, (gpus * b * (a + 1)).astype(float)), 0.0)
            gain[m, : app.epochs, gpus, : len(b)] = of_epochs.T
    arrays = {"local": local, "passes": passes, "step_s": step_s, "sync_s": sync_s, "gain": gain}
    return Own(**{name: on_device(array, array.dtype.type) for name, array in arrays.items()})


def speed_of(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State, row: Int[Array, "J"]) -> Float64[Array, "J"]:
    """True goodput of what jobs run with, in progress a second, in the epochs `row`."""
    if not world.fits:
        return world.tables.speed[jobs.plan, state.kind, state.shape, row]
    own, gpus, plan = world.own, state.gpus, jobs.plan
    at = plan, gpus, _chosen(world, jobs, state, row)
    update_s = own.step_s[at] + own.passes[at] * (own.step_s[at] - own.sync_s[at])
    return jnp.where(update_s > 0, own.gain[plan, row, gpus, at[2]] / update_s, 0.0)


def share_of(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State, row: Int[Array, "J"]) -> Float64[Array, "J"]:
    """Share of an update that is synchronisation, likewise."""
    if not world.fits:
        return world.tables.sync[jobs.plan, state.kind, state.shape, row]
    own, at = world.own, (jobs.plan, state.gpus, _chosen(world, jobs, state, row))
    update_s = own.step_s[at] + own.passes[at] * (own.step_s[at] - own.sync_s[at])
    return jnp.where(update_s > 0, own.sync_s[at] / update_s, 0.0)


def learn(world: AdaptiveWorld, jobs: AdaptiveJobs, before: State, state: State, stretch: Float64[Array, "J"]) -> State:
    """At the end of a round: who has run has seen its pass and its step, and who has seen something new fits anew."""
    if not world.fits:
        return state
    gpus, plan = state.gpus, jobs.plan
    ran = (gpus > 0) & (before.waiting_s < world.period_s)
    row = jnp.minimum(state.epoch, world.tables.epochs[plan] - 1)
    at = plan, gpus, _chosen(world, jobs, state, row)
    step_s, sync_s = world.own.step_s[at], world.own.sync_s[at]
    saw_s = step_s + sync_s * (stretch - 1.0) if world.network.contends else step_s
    new = jnp.stack([gpus * 1.0, world.own.local[at] * 1.0, step_s - sync_s, saw_s], axis=-1)
    new_to_it = ran & ~(state.seen[..., :2] == new[:, None, :2]).all(-1).any(-1)
    seen = jnp.where(new_to_it[:, None, None], jnp.concatenate([new[:, None], state.seen[:, :-1]], axis=1), state.seen)
    made = jax.ShapeDtypeStruct(state.fit.shape, state.fit.dtype)
    width = world.widths[0]

    def on_host(seen: np.ndarray, changed: np.ndarray, fit: np.ndarray) -> np.ndarray:
        found = fit.copy()
        for job in np.flatnonzero(changed):
            found[job] = fit_to(seen[job][seen[job, :, 0] > 0], width)
        return found

    return state.replace(seen=seen, fit=call_on_host(on_host, made, seen, new_to_it, state.fit))


def predicted(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State, row: Int[Array, "J"]) -> Float64[Array, "J R1"]:
    """Goodput by GPUs as jobs predict it, on the fewest nodes; 0: not possible. Before it has run, the GPUs."""
    gpus = jnp.arange(world.own.local.shape[1])
    guess = _goodputs(world, jobs.plan[:, None], gpus, row[:, None], state.fit[:, None]).max(-1)
    known = _has_run(state)[:, None]
    possible = world.own.gain[jobs.plan, row].max(-1) > 0
    return jnp.where(possible, jnp.where(known, guess, gpus * 1.0), 0.0)


def _chosen(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State, row: Int[Array, "J"]) -> Int[Array, "J"]:
    """The batch size of the largest predicted goodput; before a job has run, the smallest one."""
    guess = _goodputs(world, jobs.plan, state.gpus, row, state.fit)
    return jnp.where(_has_run(state), jnp.argmax(guess, axis=-1), 0)


def _goodputs(
    world: AdaptiveWorld,
    plan: Int[Array, "..."],
    gpus: Int[Array, "..."],
    row: Int[Array, "..."],
    fit: Float64[Array, "... 7"],
) -> Float64[Array, "... K"]:
    local, passes = world.own.local[plan, gpus], world.own.passes[plan, gpus]
    nodes = -(-gpus // world.widths[0])
    pass_s, step_s = predict(fit[..., None, :], nodes[..., None], gpus[..., None], local)
    update_s = jnp.where(step_s > 0, step_s + passes * pass_s, 1.0)
    return world.own.gain[plan, row, gpus] / update_s


def _has_run(state: State) -> Bool[Array, "J"]:
    return state.seen[:, 0, 0] > 0
