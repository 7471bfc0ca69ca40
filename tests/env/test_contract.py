"""The contract of DESIGN.md 3: reset and step, vmap, no retracing, parameters that sweep, pytrees."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.bench.programs import environment_of, job_tables, start_states
from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics.batching import traced_for
from jaxsched.dynamics.interference import Strengths
from jaxsched.env.environment import ClusterEnv, Episodes, initial_state
from jaxsched.env.observation import observe
from jaxsched.env.pool import copy_jobs, draw_start, keep_jobs, put_if, restart, starts_of, with_jobs
from jaxsched.env.rollout import one_round
from jaxsched.env.stages import transition
from jaxsched.env.state import Action, EnvConfig, State, make_params, reward_weights, wait_action
from jaxsched.policies.registry import parse
from jaxsched.workload.jobs import make_job_list, pad_table, take, to_table
from tests.support import strategies

LANES = 1024
ROUNDS = 24
# A rack per server, narrow links and few cores, so that every capacity is felt somewhere.
CLUSTER = build([Server(cores=12)] * 4, leaf_spine(4, servers_per_rack=1, oversubscription=4), 2)
CONFIG = EnvConfig(running_slots=16, queue_slots=16, rounds=3, tenants=4, largest_worker=4)
ENV = ClusterEnv(CONFIG)
RESET, STEP = jax.jit(ENV.reset), jax.jit(ENV.step)
PARAMS = make_params(CLUSTER, interval_s=60.0)
POLICY = parse("pack:area+backfill")


def make_pool(size: int, size_of_lists: int = 24) -> State:
    """Start states that differ in their jobs."""
    rng = np.random.default_rng(0)
    tables = [pad_table(to_table(strategies.random_jobs(rng, 20), 60.0), size_of_lists) for _ in range(size)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tables)
    return jax.vmap(functools.partial(initial_state, CONFIG, PARAMS))(stacked)


@pytest.fixture(scope="module")
def pool() -> State:
    return make_pool(8)


def same(a, b) -> None:
    """Two pytrees of the same structure, dtypes and bits."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        assert jnp.asarray(x).dtype == jnp.asarray(y).dtype, path
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), err_msg=str(path))


def close(a, b, rtol: float) -> None:
    """Integers alike, floats to `rtol`."""
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if np.issubdtype(x.dtype, np.floating):
            np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-5, err_msg=str(path))
        else:
            np.testing.assert_array_equal(x, y, err_msg=str(path))


def rollout(key, params, pool) -> Any:
    """`ROUNDS` steps of the policy from a random member of the pool; the final state and everything on the way."""
    episodes = Episodes(env=params, starts=pool)
    obs, state = ENV.reset(key, episodes)

    def step(carry, key):
        obs, state = carry
        action = POLICY(key, ENV.with_jobs(state, episodes), params)
        obs, state, gain, terminated, truncated, _ = ENV.step(key, state, action, episodes)
        return (obs, state), (gain, terminated, truncated)

    (obs, state), seen = jax.lax.scan(step, (obs, state), jax.random.split(key, ROUNDS))
    return obs, state, seen


def test_signature(pool):
    params, p = Episodes(env=PARAMS, starts=pool), CLUSTER.shape[0]
    obs, state = RESET(jax.random.key(0), params)
    result = STEP(jax.random.key(1), state, wait_action(CLUSTER), params)
    assert len(result) == 6
    obs_after, after, gain, terminated, truncated, info = result
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for ours, theirs in ((obs_after, obs), (after, state)):
        described = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (ours, theirs)]
        assert described[0] == described[1]
    assert gain.shape == (p,) and gain.dtype == jnp.float32
    assert terminated.shape == truncated.shape == () and terminated.dtype == truncated.dtype == bool
    assert all(leaf.shape[0] == p for leaf in jax.tree.leaves(obs))
    assert set(info) >= {"boundary", "illegal", "backlogged"}
    # Nothing is kept on the environment: traced again it gives the same answer, and it hashes by its configuration.
    same(jax.jit(ENV.step)(jax.random.key(1), state, wait_action(CLUSTER), params), result)
    assert hash(ClusterEnv(CONFIG)) == hash(ENV) and ClusterEnv(CONFIG) == ENV
    assert ClusterEnv(dataclasses.replace(CONFIG, rounds=4)) != ENV


@pytest.mark.slow
def test_reset_draws_from_the_whole_pool(pool):
    reset = jax.jit(jax.vmap(ENV.reset, in_axes=(0, None)))
    episodes = Episodes(env=PARAMS, starts=pool)
    obs, states = reset(jax.random.split(jax.random.key(0), 200), episodes)
    counts = np.bincount(states.jobs.number, minlength=8)
    assert len(counts) == 8 and min(counts) >= 8
    index = int(states.jobs.number[0])
    whole = ENV.with_jobs(states, episodes)
    same(jax.tree.map(lambda leaf: leaf[0], whole), jax.tree.map(lambda leaf: leaf[index], pool))
    close(
        jax.tree.map(lambda leaf: leaf[0], obs),
        jax.jit(functools.partial(observe, ENV.queue, PARAMS))(jax.tree.map(lambda leaf: leaf[index], pool)),
        rtol=1e-6,
    )


@pytest.mark.long
def test_1024_environments_are_1024_single_ones(pool):
    """Decisions, times and counts are equal; floats agree to 1e-5 (XLA may fuse a batched sum in another order)."""
    keys = jax.random.split(jax.random.key(7), LANES)
    together = jax.jit(jax.vmap(rollout, in_axes=(0, None, None)))(keys, PARAMS, pool)
    alone = jax.jit(rollout)
    apart = jax.tree.map(lambda *leaves: np.stack(leaves), *[jax.device_get(alone(key, PARAMS, pool)) for key in keys])
    close(together, apart, rtol=1e-5)
    assert int(together[1].clock.min()) == ROUNDS // CONFIG.rounds
    assert len(np.unique(np.asarray(together[1].records.start), axis=0)) == 8


@pytest.mark.slower
def test_restart_starts_the_done_ones_anew_and_touches_no_other(pool):
    lanes = jax.vmap(rollout, in_axes=(0, None, None))
    _, states, _ = jax.jit(lanes)(jax.random.split(jax.random.key(4), 4), PARAMS, pool)
    done = jnp.array([True, False, True, False])
    after = jax.jit(restart)(jax.random.key(5), states, done, pool)

    def lane(tree, index: int):
        return jax.tree.map(lambda leaf: leaf[index], tree)

    for index in (1, 3):
        same(lane(after, index), lane(states, index))

    @jax.jit
    def goes_on(state: State) -> State:
        def step(state, key):
            return transition(CONFIG, PARAMS, state, POLICY(key, state, PARAMS))[0], None

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(6), ROUNDS))[0]

    for index in (0, 2):
        member = lane(pool, int(after.jobs.number[index]))
        ours, theirs = goes_on(copy_jobs(lane(after, index), pool)), goes_on(member)
        assert (theirs.records.start >= 0).any()
        for name in ("records", "clock", "free", "queue", "total", "attained_s"):
            same(getattr(ours, name), getattr(theirs, name))


def test_a_state_has_no_job_list_beside_that_of_its_pool():
    """64 servers, 4 schedulers and 2,048 jobs: 49 kB of 126 were the list, of each environment."""
    config, cluster, params = environment_of("leaf-spine-64")
    pool = jax.eval_shape(lambda: start_states(cluster, config, params, 2))
    state = jax.eval_shape(draw_start, jax.random.key(0), pool)
    assert state.records.status.shape == (2048,)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) < 80_000


@pytest.mark.slow
@pytest.mark.slower
def test_lists_of_a_pool_are_read_where_they_lie():
    """Two environments play different ones as each plays its own alone, and no program copies a list for them."""
    pool = make_pool(4, size_of_lists=4096)

    def go(state: State, pool: State) -> State:
        def play(state, key):
            return keep_jobs(one_round(CONFIG, PARAMS, POLICY, with_jobs(state, pool), key), state), None

        return jax.lax.scan(play, state, jax.random.split(jax.random.key(6), ROUNDS))[0]

    together = jax.jit(jax.vmap(go, in_axes=(0, None)))
    listed = starts_of(pool, jnp.array([3, 1]))
    owning = copy_jobs(listed, pool)
    programs = [together.lower(states, pool).compile() for states in (listed, owning)]
    reads, copies = (program.memory_analysis() for program in programs)
    assert reads.temp_size_in_bytes < copies.temp_size_in_bytes + pool.jobs.model[0].nbytes
    after, alone = programs[0](listed, pool), jax.jit(go)
    assert (after.records.start[0] != after.records.start[1]).any()
    for place, number in enumerate((3, 1)):
        ours = jax.tree.map(lambda leaf, place=place: leaf[place], copy_jobs(after, pool))
        close(ours, alone(jax.tree.map(lambda leaf, number=number: leaf[number], pool), pool), rtol=1e-5)
    with pytest.raises(AttributeError, match="only the number of its job list"):
        _ = after.jobs.arrival


@pytest.mark.slower
def test_a_second_call_does_not_retrace(pool):
    traces = []

    @jax.jit
    def run(key, params, pool):
        traces.append(1)
        return rollout(key, params, pool)[1].clock

    other_pool = jax.tree.map(lambda leaf: leaf[::-1], pool)
    run(jax.random.key(0), PARAMS, pool)
    for key, change in ((1, {}), (2, {"interval_s": jnp.float32(5.0)}), (3, {"max_forwards": jnp.int32(0)})):
        run(jax.random.key(key), PARAMS.replace(**change), other_pool)
    slower = CLUSTER.replace(link_bytes_s=CLUSTER.link_bytes_s / 2, group_gpus=CLUSTER.group_gpus // 2)
    run(jax.random.key(4), PARAMS.replace(cluster=slower), pool)
    assert len(traces) == 1
    same_config = dataclasses.replace(CONFIG)
    traced = []
    step = jax.jit(lambda config, params, s, a: traced.append(1) or transition(config, params, s, a), static_argnums=0)
    state = jax.tree.map(lambda leaf: leaf[0], pool)
    for config in (CONFIG, same_config, ClusterEnv(same_config).config):
        step(config, PARAMS, state, wait_action(CLUSTER))
    assert len(traced) == 1


def times(part, name: str):
    """The part with one of its leaves times 1, 2 and 3."""
    leaf = getattr(part, name)
    return part.replace(**{name: jnp.stack([leaf, leaf * 2, leaf * 3])})


ONE_TWO_FOUR = jnp.array([1, 2, 4]).reshape(3, 1, 1, 1)
# Three values of each number that a user may sweep.
SWEEPS = {
    "interval_s": lambda p: p.replace(interval_s=jnp.array([10.0, 60.0, 120.0], jnp.float32)),
    "horizon": lambda p: p.replace(horizon=jnp.array([2, 4, 6], jnp.int32)),
    "max_forwards": lambda p: p.replace(max_forwards=jnp.array([0, 1, 2], jnp.int32)),
    "kappa": lambda p: p.replace(
        interference=p.interference.replace(weights=Strengths(kappa=jnp.arange(15, dtype=jnp.float32).reshape(3, 5)))
    ),
    "reward": lambda p: p.replace(reward=jax.vmap(reward_weights)(*jnp.eye(3))),
    "links": lambda p: p.replace(cluster=times(p.cluster, "link_bytes_s")),
    "nic": lambda p: p.replace(
        cluster=times(p.cluster.replace(link_bytes_s=p.cluster.link_bytes_s * 99), "nic_bytes_s")
    ),
    "cores": lambda p: p.replace(cluster=times(p.cluster, "group_cores")),
    "speed": lambda p: p.replace(cluster=times(p.cluster, "group_speed")),
    "gpus": lambda p: p.replace(cluster=p.cluster.replace(group_gpus=p.cluster.group_gpus // ONE_TWO_FOUR)),
    "gradients": lambda p: p.replace(profiles=times(p.profiles, "gradient_bytes")),
}


@functools.cache
def swept_rollout():
    """Each lane its own parameters: one compiled program for all sweeps."""

    def run(key, params, table):
        state = initial_state(CONFIG, params, table)

        def step(state, key):
            state, gain = transition(CONFIG, params, state, POLICY(key, state, params))
            return state, (gain, state.clock >= params.horizon)

        return jax.lax.scan(step, state, jax.random.split(key, ROUNDS))

    return jax.jit(jax.vmap(run, in_axes=(None, 0, None))), jax.jit(run)


@pytest.mark.slower
@pytest.mark.parametrize("name", SWEEPS)
def test_every_number_sweeps(name, pool):
    """Three values in one program give what three programs give, and the value matters."""
    swept = SWEEPS[name](PARAMS)
    params = jax.tree.map(
        lambda leaf, base: leaf if leaf.ndim > base.ndim else jnp.broadcast_to(leaf, (3, *leaf.shape)), swept, PARAMS
    )
    rng = np.random.default_rng(5)
    jobs = dataclasses.replace(strategies.random_jobs(rng, 24), submit_s=np.zeros(24))  # all at once
    table = to_table(jobs, 60.0)
    together, alone = swept_rollout()
    key = jax.random.key(0)
    results = together(key, params, table)
    singles = [alone(key, jax.tree.map(lambda leaf, i=i: leaf[i], params), table) for i in range(3)]
    close(results, jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles), rtol=1e-5)
    if name != "max_forwards":  # this policy never forwards
        _, seen = results
        assert len({b"".join(np.asarray(x[i]).tobytes() for x in seen) for i in range(3)}) == 3


def test_every_leaf_of_the_parameters_is_an_array():
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(PARAMS))
    named = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(PARAMS)}
    swept = {
        ".interval_s",
        ".horizon",
        ".max_forwards",
        ".interference.weights.kappa",
        ".reward.jobs",
        ".cluster.link_bytes_s",
    }
    assert swept <= named


def test_a_state_survives_the_host(pool):
    """Flattened, moved to NumPy and back, a state goes on as if nothing had happened."""
    step = jax.jit(lambda s, a: transition(CONFIG, PARAMS, s, a))
    act = jax.jit(lambda s: POLICY(jax.random.key(0), s, PARAMS))
    state = jax.tree.map(lambda leaf: leaf[3], pool)
    for _ in range(12):
        state, _ = step(state, act(state))
    leaves, structure = jax.tree.flatten(jax.device_get(state))
    copies = [np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) for x in leaves]
    again = jax.tree.unflatten(structure, [jnp.asarray(x) for x in copies])
    same(again, state)
    same(jax.jit(lambda s: s)(state), state)
    for _ in range(12):
        state, _ = step(state, act(state))
        again, _ = step(again, act(again))
    same(again, state)
    assert isinstance(act(state), Action)


def test_terminated_and_truncated(pool):
    params = Episodes(env=PARAMS.replace(horizon=jnp.int32(2)), starts=pool)
    state = jax.tree.map(lambda leaf: leaf[0], pool)
    ends = []
    for _ in range(2 * CONFIG.rounds):
        _, state, _, terminated, truncated, info = STEP(jax.random.key(0), state, wait_action(CLUSTER), params)
        ends.append((bool(terminated), bool(truncated), int(info["boundary"])))
    assert ends == [(False, False, 0)] * 2 + [(False, False, 1)] * 3 + [(False, True, 2)]
    # With nothing to come and nothing to do an episode is over.
    empty = pad_table(to_table(take(strategies.random_jobs(np.random.default_rng(0), 1), slice(0)), 60.0), 24)
    done = initial_state(CONFIG, PARAMS, empty)
    _, after, _, terminated, truncated, _ = STEP(jax.random.key(0), done, wait_action(CLUSTER), params)
    assert bool(terminated) and not bool(truncated) and int(after.clock) == 0
    members = [np.asarray(pool.jobs.duration_s[i]).tobytes() for i in range(8)]
    assert np.asarray(after.jobs.duration_s).tobytes() in members  # the next episode has begun


def test_spaces_contain_what_is_shown_and_sample_what_is_taken(pool):
    params = Episodes(env=PARAMS, starts=pool)
    obs, state = RESET(jax.random.key(0), params)
    shown = {field.name: getattr(obs, field.name) for field in dataclasses.fields(obs)}
    assert ENV.observation_space(params).contains(shown)
    assert not ENV.observation_space(params).contains(shown | {"job_slot": shown["job_slot"] + CONFIG.queue_slots})
    space = ENV.action_space(params)
    drawn = space.sample(jax.random.key(1))
    assert space.contains(drawn)
    jax.eval_shape(ENV.step, jax.random.key(2), state, Action(**drawn), params)


def test_the_end_of_an_episode_is_observed_if_asked_for(pool):
    """`final_obs` is the observation of the state that was reached, and not of that which the next step starts from."""
    params = Episodes(env=PARAMS.replace(horizon=jnp.int32(1)), starts=pool)
    env = ClusterEnv(CONFIG, final_obs=True)
    state = jax.tree.map(lambda leaf: leaf[0], pool)

    @jax.jit
    def both(state):
        reached, *_ = env.step_env(state, wait_action(CLUSTER), params)
        obs, after, _, _, truncated, info = env.step(jax.random.key(0), state, wait_action(CLUSTER), params)
        assert isinstance(after, State)
        ends = env.observe(reached, params), info["final_obs"], env.observe(after, params), obs
        return ends, truncated, after.clock, reached

    for truncates in (False, False, True):
        (end, final, begin, obs), truncated, clock, state = both(state)
        close(final, end, rtol=1e-6)
        close(obs, begin, rtol=1e-6)
        assert bool(truncated) == truncates and int(clock) == 0


def test_homes_need_no_array_of_jobs_and_groups():
    """4,096 servers and 131,072 jobs: such an array is 4 GB for one environment, and 16 of them ended in an error."""
    config, cluster, params = environment_of("leaf-spine-4096", 64)
    tables = jax.eval_shape(lambda: job_tables(cluster, config, 2))
    start = jax.jit(jax.vmap(functools.partial(initial_state, config, params)))
    memory = start.lower(tables).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 10 * memory.output_size_in_bytes


@pytest.mark.slow
def test_long_jobs_lose_no_time_to_rounding():
    """20,000 boundaries, each of which takes its share off what remains: run times are right to 1e-6."""
    config = dataclasses.replace(CONFIG, rounds=1)
    durations = np.array([30_011.7, 20_003.3, 1e7])  # the last does not fit beside them, and keeps the queue filled
    jobs = make_job_list(np.zeros(3), durations, [4, 4, 8], model=0, home=[0, 0, 0])
    cluster = build([Server(cores=10)], leaf_spine(1), 1)  # short of cores, so that the slowdowns are odd numbers
    params = make_params(cluster, interval_s=1.5)
    policy = parse("first-fit")

    def until(state, clock):
        def step(state):
            return transition(config, params, state, policy(jax.random.key(0), state, params))[0]

        return jax.lax.while_loop(lambda s: s.clock < clock, step, state)

    until = jax.jit(until)
    start = until(initial_state(config, params, to_table(jobs, 1.5)), 3)
    slow = np.asarray(start.running.slowdown, np.float64)[0]
    np.testing.assert_array_equal(np.asarray(start.running.job)[0, :3], [0, 1, -1])
    assert (slow[:2] > 1.1).all()
    done = until(start, 40_000)
    run_s = done.records.finish[:2] * 1.5 + np.asarray(done.records.finish_offset_s, np.float64)[:2]
    run_s -= np.asarray(done.records.start)[:2] * 1.5
    # Job 1 shares no socket with job 0; whatever the slowdown of either is, it is constant.
    np.testing.assert_allclose(run_s, durations[:2] * slow[:2], rtol=1e-6)


@pytest.mark.parametrize("path", ["cpu", "accelerator"])
def test_members_of_a_pool_are_put_in_where_they_should_be(path):
    """Alone, side by side, within another `vmap`, and with a pool for each."""
    rng = np.random.default_rng(0)
    done, number = rng.random((3, 4)) < 0.5, rng.integers(5, size=(3, 4))
    old, pool = {"a": rng.random((3, 4, 2))}, {"a": rng.random((5, 2))}
    pools = {"a": rng.random((3, 5, 2))}
    expected = np.where(done[..., None], pool["a"][number], old["a"])
    of_each = np.stack([np.where(done[i, :, None], pools["a"][i][number[i]], old["a"][i]) for i in range(3)])
    side_by_side = jax.vmap(put_if, (0, 0, None, 0))
    with traced_for(path):
        for put in (put_if, side_by_side, jax.vmap(side_by_side, (0, 0, None, 0))):
            np.testing.assert_allclose(jax.jit(put)(done, number, pool, old)["a"], expected, rtol=1e-6)
        one = put_if(jnp.array(True), jnp.array(3), pool, jax.tree.map(lambda leaf: leaf[0, 0], old))
        np.testing.assert_allclose(one["a"], pool["a"][3], rtol=1e-6)
        each = jax.vmap(side_by_side)(done, number, pools, old)
        np.testing.assert_allclose(each["a"], of_each, rtol=1e-6)
