"""Policies that choose from a menu: candidate placements of the window's jobs, with what each would do."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32, PRNGKeyArray, PyTree

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.batching import SHARE, everywhere, if_needed, lane_by_lane, of_parts
from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.traffic import rack_matrix
from jaxsched.env.environment import initial_state
from jaxsched.env.knowledge import ESTIMATES
from jaxsched.env.observation import Choice, Menu, Observation, observe
from jaxsched.env.queues import Discipline, check_shown, order_keys
from jaxsched.env.reservations import weigh_openings
from jaxsched.env.state import FORWARD, PLACE, POSSIBLE, Action, EnvConfig, EnvParams, State, make_params, wait_action
from jaxsched.policies.base import Act, find_faster, or_faster, place_or_forward
from jaxsched.policies.filling import ahead
from jaxsched.policies.looking_ahead import Hope, look_ahead
from jaxsched.policies.offers import Offers, appraise, score
from jaxsched.policies.policy import Policy
from jaxsched.policies.rules import per_server
from jaxsched.policies.spec import TO_ANY
from jaxsched.policies.window import Window, make_window, with_step_times
from jaxsched.pytree import zeros_of
from jaxsched.semantics import CAPS
from jaxsched.workload.jobs import make_job_list, to_table

OPTIONS = 32  # of a scheduler; there are five on average, and more only while much is free
_LONG = 1e4  # run times of a job: so long a wait is as good as for ever
_STAKE = 4.0  # largest log of a stake: beyond it, only the sign matters
_STEEP = 4.0  # by which it grows with the log of two slowdowns' ratio
_LEAST = 1e-3  # of a slowdown
PLAIN = Discipline()


class Shares(NamedTuple):
    """What is worked out at a time where much runs side by side on an accelerator (`dynamics.batching`)."""

    environments: float  # of all
    jobs: float  # of all in the windows of these
    parts: float  # of all that their menus have


BUSY = Shares(5 / 16, 3 / 8, 7 / 16)  # where a scheduler has a job to place or to forward: in a turn 28% of all


class Offered(NamedTuple):
    """What a policy chooses from, and the state that it is of."""

    params: EnvParams
    state: State
    observation: Observation
    menu: Menu


Chooser = Callable[[PRNGKeyArray, Offered, PyTree], Choice]


def build_menu(
    params: EnvParams,
    state: State,
    obs: Observation,
    looks_ahead: bool = False,
    queue: Discipline = PLAIN,
    share: float = SHARE,
) -> Menu:
    """The menu for the first `W` jobs of the observation's window, empty for schedulers that have waited.

    If there are more than `OPTIONS` placements, the last of the last jobs are not offered, but for those who look ahead
    the best of each job. Who `looks_ahead` is told what waiting would bring (`policies.looking_ahead`), and stakes are
    measured by that. `queue`: what was observed of.
    """
    slots, there = obs.job_slot[:, :-1], obs.job_mask[:, :-1]
    if not looks_ahead:
        return lane_by_lane(functools.partial(_build, share))(
            params, make_window(state, params, slots, there, racks=queue.racks)
        )
    open_to = weigh_openings(queue, params, state, order_keys(queue, state, params))[1]
    _, goes = find_faster(queue, TO_ANY, state, params, slots, open_to)
    window = make_window(state, params, slots, there, lifetimes=True, ahead=True, goes=goes)
    return lane_by_lane(functools.partial(_build_ahead, share))(params, window)


def _build(share: float, params: EnvParams, window: Window) -> Menu:
    def of_job(part: Window, partition: Array, rank: Array) -> Menu:
        on = appraise(params, part, partition, rank)
        return _menu_of(on, rank, part.duration_s[rank], part.wait_s)

    return _menus(with_step_times(params, window), window, of_job, share)


def _build_ahead(share: float, params: EnvParams, window: Window) -> Menu:
    def of_job(part: Window, partition: Array, rank: Array) -> Menu:
        on, duration = appraise(params, part, partition, rank), part.duration_s[rank]
        choice = jnp.argmin(score(on))
        hope = look_ahead(params, part, partition, rank, on)
        menu = _menu_of(on.replace(stake=_stakes(on, hope, choice)), rank, duration, part.wait_s)
        more = jnp.where(menu.mask[:, None], _hopes(on, hope, duration), 0.0)
        features = jnp.concatenate([menu.features, more], -1)
        return menu.replace(features=features, brief=menu.brief & ~hope.waits)

    return _menus(with_step_times(params, window), window, of_job, share, best=True)


def _stakes(on: Offers, hope: Hope, choice: Int32[Array, ""]) -> Float32[Array, "C"]:
    """Above e where the job had better wait, of its `choice` below 1/e where it had not; by how much the two differ."""
    margin = jnp.log(on.effective) - jnp.log(hope.most)
    sure = jnp.clip(1.0 + _STEEP * jnp.abs(margin), 1.0, _STAKE)
    of_job = jnp.where(hope.waits, sure[choice], -sure[choice])
    return jnp.exp(jnp.maximum(of_job, jnp.where(margin > 0.0, sure, -sure)).at[choice].set(of_job))


def _menus(
    parts: PyTree, window: Window, of_job: Callable[[Any, Array, Array], Menu], share: float, best: bool = False
) -> Menu:
    """The menus of all schedulers; `parts`: what `of_job` reads, with a leading axis over partitions.

    `best`: as in `_compacted`.
    """
    first = jax.tree.map(lambda leaf: leaf[0], parts)
    blank = zeros_of(of_job, first, jnp.int32(0), jnp.int32(0))
    menus = of_parts(parts, window.some, of_job, everywhere(blank, window.some), share=share)
    menus = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[3:]), menus)
    return jax.vmap(functools.partial(_compacted, best))(menus)


def _hopes(on: Offers, hope: Hope, duration: Float32[Array, ""]) -> Float32[Array, "C 4"]:
    """What the placements are beside what the job could reach, beside the best wait and that, and what they delay."""
    waits = jnp.minimum(hope.wait_s / jnp.maximum(duration, 1.0), _LONG)
    rows = [
        jnp.log(on.effective / jnp.maximum(hope.reach, _LEAST)),
        jnp.log(on.effective / jnp.maximum(hope.least, _LEAST)),
        jnp.full_like(on.own, jnp.log1p(waits)),
        jnp.log1p(on.later) / 4,
    ]
    return jnp.stack(rows, -1)


def _compacted(best: bool, menu: Menu) -> Menu:
    """The first `OPTIONS` entries of one scheduler's menu that hold something; leading axis K.

    Others make way for the `best` of each job.
    """
    size, kept = menu.mask.shape[0], menu.mask
    if best:
        first, others = kept & (menu.order == 0), kept & (menu.order > 0)
        kept &= first | (jnp.cumsum(others) <= OPTIONS - first.sum())
    so_far, place = jnp.cumsum(kept), jnp.arange(min(OPTIONS, size))
    some = place < so_far[-1]
    chosen = jnp.where(some, (so_far[:, None] <= place).sum(0), 0)
    return jax.tree.map(lambda leaf: leaf[chosen], menu).replace(mask=some)


def _menu_of(on: Offers, rank: Int32[Array, ""], duration: Float32[Array, ""], wait: Float32[Array, ""]) -> Menu:
    """The menu of the job at place `rank` of the window; leading axis C."""
    view, workers, mask = on.view, on.workers, on.valid
    layout = layout_of(view.cluster)
    servers = jax.vmap(lambda w: per_server(layout, w))(workers)
    used = (servers > 0).sum(-1)
    racks = ((servers[..., None] > 0) & (rack_matrix(view.cluster) > 0)).any(-2).sum(-1)
    touched = workers > 0
    groups = touched.sum(-1)
    free_after = jnp.where(touched, view.free - workers * on.gpus_per_worker, 0).sum(-1)
    shared = (touched & (view.total[layout.cpu] > 0)).sum(-1)
    cap = jnp.arange(workers.shape[0]) % len(CAPS)
    stake = jnp.clip(jnp.log(jnp.maximum(on.stake, 0.0) + 1e-9), -_STAKE, _STAKE)
    features = jnp.stack(
        [
            jnp.log(on.own),
            jnp.log1p(on.added_s / jnp.maximum(duration, 1.0)),
            jnp.log(on.effective),
            jnp.log1p(on.added_s / 60.0) / 4,
            jnp.log1p(used.astype(jnp.float32)),
            jnp.log1p(groups.astype(jnp.float32)),
            jnp.log1p(racks.astype(jnp.float32)),
            jnp.log1p(jnp.maximum(free_after, 0).astype(jnp.float32)),
            shared / jnp.maximum(groups, 1),
            (cap == 1).astype(jnp.float32),
            (cap == 2).astype(jnp.float32),
            stake / _STAKE,
        ],
        -1,
    )
    return Menu(
        rank=jnp.full(mask.shape, rank, jnp.int32),
        order=ahead(score(on)).sum(-1, dtype=jnp.int32),
        workers=workers.astype(jnp.int8),
        features=jnp.where(mask[:, None], features, 0.0),
        log_stake=jnp.where(mask, stake, 0.0),
        brief=mask & (on.effective * duration <= wait),
        mask=mask,
    )


def to_action(state: State, obs: Observation, menu: Menu, choice: Choice) -> Action:
    """The environment's action for a choice: the GPU group of every worker and PS, a forward, or waiting."""
    p, k = menu.mask.shape
    schedulers = jnp.arange(p)
    place = choice.act & (choice.option < k)
    placement = jnp.minimum(choice.option, k - 1)
    workers = menu.workers[schedulers, placement].astype(jnp.int32)
    slot = obs.job_slot[schedulers, menu.rank[schedulers, placement]]
    forward = choice.act & ~place
    target = jnp.clip(choice.option - k, 0, p - 1)
    return place_or_forward(state, place, slot, workers, obs.job_slot[:, -1], target, forward)


def menu_policy(
    name: str,
    choose: Chooser,
    weights: PyTree,
    queue: Discipline,
    max_forwards: int | None = None,
    looks_ahead: bool = False,
) -> Policy:
    """The policy that does what `choose(key, offered, weights)` picks, on queues of this discipline.

    It is asked only where a job may be placed or forwarded. A job is forwarded at most `max_forwards` times, if given.
    `looks_ahead`: see `build_menu`.
    """
    return Policy(name, menu_act(choose, queue, max_forwards, looks_ahead), weights, asked=POSSIBLE, needs=ESTIMATES)


def menu_act(choose: Chooser, queue: Discipline, max_forwards: int | None, looks_ahead: bool = False) -> Act:
    """How `menu_policy` acts: kinds and targets int32[P] of all schedulers, workers int32[P, N, K]."""
    check_shown(queue, looks_ahead)

    def act(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        params, obs = look(queue, max_forwards, state, params, looks_ahead)

        def decide() -> Action:
            menu = build_menu(params, state, obs, looks_ahead, queue, BUSY.jobs)
            return to_action(state, obs, menu, choose(key, Offered(params, state, obs, menu), weights))

        something = ((obs.job_mask[:, :-1].any(-1) | obs.forward_mask.any(-1)) & ~state.waited).any()
        action = if_needed(something, decide, wait_action(params.cluster), share=BUSY.environments)
        return as_ahead(queue, params, state, action) if looks_ahead else action

    return act


def as_ahead(queue: Discipline, params: EnvParams, state: State, action: Action) -> Action:
    """The action of who looks ahead: jobs go where GPUs are faster, and what a start costs the gang is counted."""
    _, open_to, passed = weigh_openings(queue, params, state, order_keys(queue, state, params))
    slot, places = action.slot, action.kind == PLACE
    near, _ = find_faster(queue, TO_ANY, state, params, slot[:, None], open_to)
    elsewhere = slot, action.target, action.kind == FORWARD
    places, (_, target, forwards) = or_faster(queue, TO_ANY, state, params, slot, places, near, elsewhere)
    kind = jnp.where(places, PLACE, jnp.where(forwards, FORWARD, action.kind))
    return action.replace(kind=kind, target=target, overtaken=passed.by(slot) if passed else None)


def look(
    queue: Discipline, max_forwards: int | None, state: State, params: EnvParams, looks_ahead: bool = False
) -> tuple[EnvParams, Observation]:
    """What a policy of this discipline observes, and the parameters under which a job is forwarded no more often."""
    if max_forwards is not None:
        params = params.replace(max_forwards=jnp.minimum(params.max_forwards, max_forwards))
    return params, observe(queue, params, state, weighs=looks_ahead)


def shapes_shown(queue: Discipline, cluster: Cluster, looks_ahead: bool = False) -> tuple[Observation, Menu]:
    """The shapes of what schedulers observe and are offered on a cluster, whatever the jobs."""
    params, config = make_params(cluster), EnvConfig(largest_group=int(cluster.group_gpus.max()))
    job = to_table(make_job_list(submit_s=0.0, duration_s=1.0, workers=1), 60.0)

    def look() -> tuple[Observation, Menu]:
        state = initial_state(config, params, job)
        obs = observe(queue, params, state, weighs=looks_ahead)
        return obs, build_menu(params, state, obs, looks_ahead, queue)

    return jax.eval_shape(look)
