"""The learned policy: its distribution against brute force, its actions against the environment, its files."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import strategies
from flax import serialization
from jax import lax

from jaxsched.cluster import padding
from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics import lanes
from jaxsched.env.environment import is_finished, transition
from jaxsched.env.observation import Observation, observe
from jaxsched.env.state import FINISHED, FORWARD, PLACE, WAIT, EnvParams, State, make_params
from jaxsched.errors import UserError
from jaxsched.networks.hierarchy import Heads, Menu, SchedulerNetwork
from jaxsched.policies.learned import (
    CARD_FILE,
    WEIGHTS_FILE,
    Choice,
    learned_policy,
    load_checkpoint,
    load_policy,
    log_prob_and_entropy,
    most_likely,
    option_logits,
    sample,
    save_policy,
    sizes_of,
    to_action,
)
from jaxsched.policies.menu import build_menu
from jaxsched.workload.jobs import make_job_list, pad_table, to_table

# ----------------------------------------------------------------------------------------------------- the distribution

P, W, C, NK = 4, 2, 3, 4
OPTIONS = W * C + P


def made_up(seed: int = 0, spread: float = 1.0) -> tuple[Heads, Observation, Menu]:
    """Random heads; scheduler 0 may do anything, 1 only place, 2 only forward, 3 nothing at all."""
    rng = np.random.default_rng(seed)

    def floats(*shape):
        return jnp.asarray(spread * rng.normal(size=shape), jnp.float32)

    mask = rng.random((P, W, C)) < 0.7
    mask[0, 0, 0] = mask[1, 1, 1] = True
    mask[2:] = False
    forward_mask = ~np.eye(P, dtype=bool)
    forward_mask[1], forward_mask[2, 1], forward_mask[3] = False, False, False
    obs = Observation(
        group=None, group_mask=None, server=None, server_rack=None, rack=None, scheduler=None, job=None,
        job_slot=jnp.asarray(rng.permuted(np.tile(np.arange(W + 1), (P, 1)), axis=1), jnp.int32),
        job_mask=None, forward_mask=jnp.asarray(forward_mask),
    )  # fmt: skip
    menu = Menu(
        workers=jnp.asarray(rng.integers(0, 3, (P, W, C, NK)), jnp.int8),
        features=None, log_effective=None, log_stake=None, brief=None, mask=jnp.asarray(mask),
    )  # fmt: skip
    return Heads(place=floats(P, W, C), forward=floats(P, P), act=floats(P), value=floats(P)), obs, menu


def legal_options(obs: Observation, menu: Menu) -> np.ndarray:
    return np.concatenate([np.asarray(menu.mask).reshape(P, -1), np.asarray(obs.forward_mask)], -1)


def brute_force(heads: Heads, obs: Observation, menu: Menu) -> np.ndarray:
    """Probabilities float64[P, 1 + OPTIONS]: of waiting, then of every option."""
    legal = legal_options(obs, menu)
    logits = np.concatenate([np.asarray(heads.place).reshape(P, -1), np.asarray(heads.forward)], -1).astype(np.float64)
    probabilities = np.zeros((P, 1 + OPTIONS))
    for p in range(P):
        acts = 1 / (1 + math.exp(-float(heads.act[p]))) if legal[p].any() else 0.0
        weights = [math.exp(x) if ok else 0.0 for x, ok in zip(logits[p], legal[p], strict=True)]
        probabilities[p, 0] = 1 - acts
        probabilities[p, 1:] = acts * np.array(weights) / max(sum(weights), 1e-300)
    return probabilities


def every_choice() -> list[Choice]:
    """Waiting (with whatever option), then acting with each."""
    wait = Choice(act=jnp.zeros(P, bool), option=jnp.full(P, 2, jnp.int32))
    return [wait] + [Choice(act=jnp.ones(P, bool), option=jnp.full(P, i, jnp.int32)) for i in range(OPTIONS)]


@pytest.mark.parametrize("seed", range(3))
def test_log_probabilities_are_those_of_brute_force_and_sum_to_one(seed):
    heads, obs, menu = made_up(seed, spread=2.0)
    log_probs = np.stack([log_prob_and_entropy(heads, obs, menu, choice)[0] for choice in every_choice()], -1)
    expected, some = brute_force(heads, obs, menu), legal_options(obs, menu).any(-1)
    np.testing.assert_allclose(np.exp(log_probs.astype(np.float64))[some].sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_probs)[some], expected[some], rtol=1e-4, atol=1e-7)
    assert (log_probs[~some] == 0).all() and np.isfinite(log_probs).all()


@pytest.mark.parametrize("seed", range(3))
def test_entropy_is_that_of_brute_force(seed):
    heads, obs, menu = made_up(seed, spread=2.0)
    _, entropy = log_prob_and_entropy(heads, obs, menu, every_choice()[0])
    probabilities = brute_force(heads, obs, menu)
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    np.testing.assert_allclose(entropy, -(probabilities * logs).sum(-1), rtol=1e-4, atol=1e-5)
    assert float(entropy[3]) == 0.0


def test_sampling_follows_the_probabilities_and_never_takes_a_masked_option():
    heads, obs, menu = made_up(1)
    count = 20_000
    draw = jax.jit(jax.vmap(lambda key: sample(key, heads, obs, menu)))
    choice = draw(jax.random.split(jax.random.key(0), count))
    act, option = np.asarray(choice.act), np.asarray(choice.option)
    expected, legal = brute_force(heads, obs, menu), legal_options(obs, menu)
    for p in range(P):
        taken = option[act[:, p], p]
        assert legal[p][taken].all()
        seen = np.concatenate([[(~act[:, p]).mean()], np.bincount(taken, minlength=OPTIONS) / count])
        error = np.sqrt(expected[p] * (1 - expected[p]) / count)
        assert (np.abs(seen - expected[p]) <= 4.5 * error + 1e-9).all()
    assert not act[:, 3].any()


def test_log_probability_of_a_sample_has_the_entropy_as_its_mean():
    heads, obs, menu = made_up(2)
    keys = jax.random.split(jax.random.key(1), 20_000)
    log_prob, entropy = jax.vmap(lambda key: log_prob_and_entropy(heads, obs, menu, sample(key, heads, obs, menu)))(
        keys
    )
    np.testing.assert_allclose(-log_prob.mean(0), entropy[0], atol=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_most_likely_takes_the_mode_of_both_decisions(seed):
    heads, obs, menu = made_up(seed)
    choice = most_likely(heads, obs, menu)
    probabilities, legal = brute_force(heads, obs, menu), legal_options(obs, menu)
    for p in range(P):
        assert bool(choice.act[p]) == (probabilities[p, 0] < 0.5 and legal[p].any())
        if legal[p].any():
            assert int(choice.option[p]) == probabilities[p, 1:].argmax()


@pytest.mark.parametrize("bad", [1e30, np.inf, np.nan])
def test_masked_logits_do_not_matter_however_large(bad):
    heads, obs, menu = made_up(3)
    loud = heads.replace(
        place=jnp.where(menu.mask, heads.place, bad), forward=jnp.where(obs.forward_mask, heads.forward, bad)
    )
    assert jax.tree.all(
        jax.tree.map(lambda a, b: bool((a == b).all()), *[option_logits(h, obs, menu) for h in (heads, loud)])
    )
    for key in jax.random.split(jax.random.key(0), 20):
        choice, other = sample(key, heads, obs, menu), sample(key, loud, obs, menu)
        assert (choice.act == other.act).all() and (choice.option == other.option).all()
    assert (most_likely(loud, obs, menu).option == most_likely(heads, obs, menu).option).all()


def test_a_policy_that_may_not_wait_waits_only_if_it_must():
    heads, obs, menu = made_up(2)
    sure = heads.replace(act=jnp.full(P, 1e9))  # what the network says with may_wait=False
    some = legal_options(obs, menu).any(-1)
    act = jax.vmap(lambda key: sample(key, sure, obs, menu).act)(jax.random.split(jax.random.key(0), 200))
    assert (np.asarray(act) == some).all() and (np.asarray(most_likely(sure, obs, menu).act) == some).all()
    log_probs = np.stack([log_prob_and_entropy(sure, obs, menu, choice)[0] for choice in every_choice()], -1)
    np.testing.assert_allclose(np.exp(log_probs[some, 1:]).sum(-1), 1.0, rtol=1e-5)
    assert (np.exp(log_probs[some, 0]) == 0).all()


@pytest.mark.parametrize("spread", [1.0, 50.0, 1e4])
def test_values_and_gradients_stay_finite(spread):
    heads, obs, menu = made_up(4, spread)

    @jax.jit
    def of(heads, choice):
        return jax.value_and_grad(lambda h: sum(x.sum() for x in log_prob_and_entropy(h, obs, menu, choice)))(heads)

    for choice in (every_choice()[0], most_likely(heads, obs, menu), sample(jax.random.key(0), heads, obs, menu)):
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(of(heads, choice)))
    _, gradient = of(heads, every_choice()[0])
    assert not gradient.act[3].any() and not gradient.place[3].any() and not gradient.forward[3].any()
    assert not jnp.where(menu.mask, 0.0, gradient.place).any()


# ------------------------------------------------------------------------------------------------------ whole workloads

SHAPE = strategies.SHAPES["three"]
CONFIG = SHAPE.config(window=2)
NET = SchedulerNetwork(width=8)
MOST_ROUNDS = 600  # such a workload takes some 40


@functools.cache
def untrained():
    """Weights as training starts with them."""
    case = a_case()
    start = strategies.jit_start(CONFIG)(case.params, case.table)
    return jax.jit(lambda params, state: NET.init(jax.random.key(0), *offered(params, state)))(case.params, start)


def noisy(seed: int, spread: float = 0.5):
    """Weights that no training would give."""
    leaves, tree = jax.tree.flatten(untrained())
    rng = np.random.default_rng(seed)
    return tree.unflatten([leaf + jnp.asarray(spread * rng.normal(size=leaf.shape), jnp.float32) for leaf in leaves])


def offered(params: EnvParams, state: State) -> tuple[Observation, Menu]:
    obs = observe(CONFIG, params, state)
    return obs, build_menu(CONFIG, params, state, obs)


def a_case(seed: int = 1, **fixed) -> strategies.Case:
    return strategies.random_case(seed, "three", **fixed)


@functools.cache
def busy_case() -> strategies.Case:
    """All jobs come at once."""
    case = a_case(0)
    return dataclasses.replace(case, jobs=dataclasses.replace(case.jobs, submit_s=np.zeros(len(case.jobs))))


@functools.cache
def jit_offered():
    return jax.jit(offered)


@functools.cache
def jit_run():
    """Compiled `(weights, params, state, most) -> (State, rounds)`: to the end, or `most` decision rounds."""

    def run(weights, params: EnvParams, state: State, most):
        policy = learned_policy("it", CONFIG, NET, weights)

        def body(carry):
            state, rounds = carry
            action = policy(jax.random.key(0), observe(CONFIG, params, state), state, params)
            return transition(CONFIG, params, state, action)[0], rounds + 1

        def go_on(carry):
            return ~is_finished(carry[0]) & (carry[1] < most)

        return lax.while_loop(go_on, body, (state, 0))

    return jax.jit(run)


@functools.cache
def mid_run_state() -> State:
    """Of `busy_case`: jobs in every queue and on the servers, some of them to be forwarded."""
    case = busy_case()
    state, _ = run(untrained(), case, 8)
    obs, _ = jit_offered()(case.params, state)
    if not ((state.queue >= 0).any(-1).all() and (state.running.job >= 0).any(-1).all() and obs.forward_mask.any()):
        raise RuntimeError("not the state that these tests need")
    return state


def run(weights, case: strategies.Case, most: int = MOST_ROUNDS) -> tuple[State, int]:
    state, rounds = jit_run()(weights, case.params, strategies.jit_start(CONFIG)(case.params, case.table), most)
    return state, int(rounds)


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 6])
def test_an_untrained_network_runs_a_workload_to_its_end(seed):
    """Gangs, PS, all-reduce, workers of up to 4 GPUs; servers of up to 3 sockets, all alike."""
    case = a_case(seed, homogeneous=True, tree=seed % 2 == 1)
    state, rounds = run(untrained(), case)
    count = len(case.jobs)
    home = np.asarray(state.jobs.home)[:count]
    assert rounds < MOST_ROUNDS
    assert int(state.illegal) == 0
    assert (np.asarray(state.records.status)[:count][home >= 0] == FINISHED).all()
    assert (np.asarray(state.free) == np.asarray(case.cluster.group_gpus)).all()


def test_a_job_that_is_slow_everywhere_in_its_partition_still_starts():
    """A T4 is 0.17 A100s, so that the best offer of the last partition has slowdown 5.9; nothing else will come."""
    kinds = [Server(groups=(4, 4), gpu_type=name) for name in ("A100",) * 4 + ("T4",) * 2]
    cluster = strategies.pad_cluster(build(kinds, leaf_spine(6), 3), SHAPE)
    params = make_params(cluster, interval_s=60.0)
    table = pad_table(to_table(make_job_list([0.0] * 3, 100.0, 1, home=[0, 1, 2]), 60.0), SHAPE.jobs)
    state, _ = jit_run()(untrained(), params, strategies.jit_start(CONFIG)(params, table), MOST_ROUNDS)
    assert np.asarray(state.records.status)[:3].tolist() == [FINISHED] * 3


@pytest.mark.parametrize("seed", range(2))
def test_on_a_padded_cluster_the_same_weights_decide_the_same(seed):
    """A partition, servers, groups, racks and links more that only pad: no job starts or finishes otherwise."""
    case = a_case(seed)
    sizes = dataclasses.asdict(padding.shape_of(case.cluster))
    big = padding.pad(case.cluster, padding.Shape(**{axis: size + 2 for axis, size in sizes.items()}))
    (small, _), (padded, _) = (run(noisy(seed), one) for one in (case, dataclasses.replace(case, cluster=big)))
    assert (np.asarray(small.records.status) == FINISHED).any()
    for name in ("status", "partition", "start", "finish", "forwards"):
        np.testing.assert_array_equal(padded.records[name], small.records[name])
    np.testing.assert_allclose(padded.records.finish_offset_s, small.records.finish_offset_s, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_weights_every_action_is_legal(seed):
    """Unlike servers and padding; such weights need not place every job, but must not do what cannot be done."""
    state, _ = run(noisy(seed), a_case(100 + seed))
    assert int(state.illegal) == 0


def test_to_action_places_forwards_and_waits():
    case, state = busy_case(), mid_run_state()
    obs, menu = jit_offered()(case.params, state)
    p, w, c, nk = menu.workers.shape
    columns = np.arange(p)
    for kind in (PLACE, FORWARD, WAIT):
        option = {PLACE: np.argmax(np.asarray(menu.mask).reshape(p, -1), -1), FORWARD: w * c + (columns + 1) % p}.get(
            kind, np.zeros(p)
        )
        choice = Choice(act=jnp.full(p, kind != WAIT), option=jnp.asarray(option, jnp.int32))
        action = to_action(state, obs, menu, choice)
        assert (action.kind == kind).all()
        if kind == PLACE:
            taken = np.asarray(menu.workers).reshape(p, w * c, nk)[columns, option]
            slot = np.asarray(obs.job_slot)[columns, option // c]
            np.testing.assert_array_equal(np.asarray(action.workers).reshape(p, nk), taken)
            np.testing.assert_array_equal(action.slot, slot)
            ps = np.asarray(state.jobs.ps)[np.maximum(np.asarray(state.queue)[columns, slot], 0)]
            some = np.asarray(menu.mask).any((1, 2))
            np.testing.assert_array_equal(np.asarray(action.ps).sum((1, 2))[some], ps[some])
        if kind == FORWARD:
            np.testing.assert_array_equal(action.target, (columns + 1) % p)
            np.testing.assert_array_equal(action.slot, obs.job_slot[:, -1])


def test_every_legal_option_of_the_menu_is_legal_for_the_environment():
    """All placements and forwards on offer, one scheduler at a time."""
    case, state = busy_case(), mid_run_state()
    obs, menu = jit_offered()(case.params, state)
    _, mask = option_logits(
        Heads(
            place=jnp.zeros(menu.mask.shape), forward=jnp.zeros(obs.forward_mask.shape), act=jnp.zeros(3), value=None
        ), obs, menu,
    )  # fmt: skip
    p, options = mask.shape

    @jax.jit
    def attempts(option):
        def one(scheduler, option):
            choice = Choice(act=jnp.arange(p) == scheduler, option=jnp.full(p, option))
            after, _ = transition(CONFIG, case.params, state, to_action(state, obs, menu, choice))
            return after.illegal - state.illegal

        return jax.vmap(lambda scheduler: jax.vmap(lambda o: one(scheduler, o))(option))(jnp.arange(p))

    illegal = np.asarray(attempts(jnp.arange(options)))
    mask = np.asarray(mask)
    assert mask.any(-1).sum() >= 2
    assert (illegal[mask] == 0).all()
    assert (illegal[~mask] == 1).any()  # the counter does count


def test_the_menu_is_the_same_one_by_one_and_side_by_side(monkeypatch):
    case, state = busy_case(), mid_run_state()
    _, alone = jit_offered()(case.params, state)
    assert alone.mask.any()
    monkeypatch.setattr(lanes, "_on_cpu", lambda: False)
    _, beside = jax.jit(lambda params, state: offered(params, state))(case.params, state)
    np.testing.assert_array_equal(alone.mask, beside.mask)
    np.testing.assert_array_equal(alone.brief, beside.brief)
    for name in ("features", "log_effective", "log_stake"):
        np.testing.assert_allclose(alone[name], beside[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(*(jnp.where(menu.mask[..., None], menu.workers, 0) for menu in (alone, beside)))


# ---------------------------------------------------------------------------------------------------------------- files


def test_a_saved_policy_acts_as_before_in_whatever_environment(tmp_path):
    """The window and the order it was trained with come along."""
    weights, case, state = noisy(1, 0.1), busy_case(), mid_run_state()
    eager = SchedulerNetwork(width=8, may_wait=False)
    save_policy(tmp_path / "deep" / "it", eager, weights, {"chunk": 3}, CONFIG)
    assert sorted(path.name for path in (tmp_path / "deep" / "it").iterdir()) == sorted([CARD_FILE, WEIGHTS_FILE])
    card = json.loads((tmp_path / "deep" / "it" / CARD_FILE).read_text())
    assert card["chunk"] == 3 and card["network"]["width"] == 8 and set(card["versions"]) == {"jaxsched", "jax", "flax"}
    other = dataclasses.replace(CONFIG, window=4, order="fifo", skip_blocked=False)
    loaded = load_policy(str(tmp_path / "deep" / "it"), other)
    assert loaded.name == str(tmp_path / "deep" / "it")

    def act(policy, config):
        program = jax.jit(
            lambda params, state: policy(jax.random.key(9), observe(config, params, state), state, params)
        )
        return program(case.params, state)

    before, after = act(learned_policy("it", CONFIG, eager, weights), CONFIG), act(loaded, other)
    assert (before.kind == PLACE).any()
    jax.tree.map(np.testing.assert_array_equal, before, after)


@pytest.mark.parametrize("most", [None, 0])
def test_a_policy_trained_without_forwarding_never_forwards(tmp_path, most):
    """Its card says so, whatever the environment allows; else it acts as in an environment that allows none."""
    weights = noisy(1, 0.1)
    to_act_and_forward = jnp.array([4.0, 2.0, 4.0, 1.0, 100.0, -100.0, 100.0])
    keen = {"params": weights["params"] | {"prior": to_act_and_forward}}
    case, state = busy_case(), mid_run_state()
    save_policy(tmp_path, NET, keen, {} if most is None else {"max_forwards": most}, CONFIG)
    loaded = load_policy(str(tmp_path), CONFIG)

    @jax.jit
    def act(params):
        return loaded(jax.random.key(0), observe(CONFIG, params, state), state, params)

    assert int(case.params.max_forwards) > 0
    action = act(case.params)
    assert bool((action.kind == FORWARD).any()) == (most is None)
    if most == 0:
        jax.tree.map(np.testing.assert_array_equal, action, act(case.params.replace(max_forwards=jnp.int32(0))))


def test_a_flat_policy_is_for_clusters_of_its_sizes(tmp_path):
    case, state = busy_case(), mid_run_state()
    obs, menu = jit_offered()(case.params, state)
    flat = SchedulerNetwork(width=8, kind="flat")
    weights = flat.init(jax.random.key(0), obs, menu)
    sizes = sizes_of(obs)
    save_policy(tmp_path, flat, weights, {"sizes": list(sizes)}, CONFIG)
    loaded = load_policy(str(tmp_path), CONFIG)

    def act(params, state):
        return loaded(jax.random.key(0), observe(CONFIG, params, state), state, params)

    jax.eval_shape(act, case.params, state)
    larger = padding.Shape(**{n: size + 1 for n, size in dataclasses.asdict(padding.shape_of(case.cluster)).items()})
    params = case.params.replace(cluster=padding.pad(case.cluster, larger))
    other = jax.eval_shape(strategies.jit_start(CONFIG), params, case.table)
    with pytest.raises(UserError, match=f"flat network is for clusters of {sizes[0]} schedulers x {sizes[1]} servers"):
        jax.eval_shape(act, params, other)
    save_policy(tmp_path, flat, weights, {}, CONFIG)
    with pytest.raises(UserError, match="sizes of a flat network"):
        load_policy(str(tmp_path), CONFIG)
    save_policy(tmp_path, flat, weights, {"sizes": [sizes[0] + 1, *sizes[1:]]}, CONFIG)
    with pytest.raises(UserError, match="has shape"):
        load_policy(str(tmp_path), CONFIG)


def test_a_card_of_before_there_were_kinds_is_of_a_graph_network(tmp_path):
    save_policy(tmp_path, NET, noisy(2), {"max_forwards": -1}, CONFIG)
    card = json.loads((tmp_path / CARD_FILE).read_text())
    with pytest.raises(UserError, match="max_forwards"):
        load_policy(str(tmp_path), CONFIG)
    del card["network"]["kind"], card["max_forwards"]
    (tmp_path / CARD_FILE).write_text(json.dumps(card))
    assert load_checkpoint(str(tmp_path)).network == NET


def test_saved_weights_are_bitwise_those_that_were_saved(tmp_path):
    weights = noisy(2)
    save_policy(tmp_path, NET, weights, {})
    read = serialization.msgpack_restore((tmp_path / WEIGHTS_FILE).read_bytes())
    jax.tree.map(np.testing.assert_array_equal, weights, jax.tree.map(jnp.asarray, read))


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> tuple[dict, bytes]:
    """The card and the weights of a checkpoint without fault."""
    folder = tmp_path_factory.mktemp("good")
    save_policy(folder, NET, noisy(3), {"chunk": 1}, CONFIG)
    return json.loads((folder / CARD_FILE).read_text()), (folder / WEIGHTS_FILE).read_bytes()


def changed(card: dict, **network) -> bytes:
    return json.dumps(card | {"network": card["network"] | network}).encode()


def seen(card: dict, **observation) -> bytes:
    return json.dumps(card | {"observation": card["observation"] | observation}).encode()


def without(card: dict, key: str) -> bytes:
    return json.dumps({name: value for name, value in card.items() if name != key}).encode()


def filled(weights: bytes, value: float) -> bytes:
    """The same tree of weights, all of them `value`."""
    tree = serialization.msgpack_restore(weights)
    return serialization.msgpack_serialize(jax.tree.map(lambda leaf: np.full_like(leaf, value), tree))


# name: (card, weights) of the good ones -> card, weights; None: no such file
FAULTS = {
    "no card": (lambda card, weights: (None, weights)),
    "no weights": (lambda card, weights: (json.dumps(card).encode(), None)),
    "card not JSON": (lambda card, weights: (b"{", weights)),
    "card not text": (lambda card, weights: (b"\xff\xfe\x00", weights)),
    "card a list": (lambda card, weights: (b"[1]", weights)),
    "card null": (lambda card, weights: (b"null", weights)),
    "no schema": (lambda card, weights: (without(card, "schema"), weights)),
    "another schema": (lambda card, weights: (json.dumps(card | {"schema": 99}).encode(), weights)),
    "no observation": (lambda card, weights: (without(card, "observation"), weights)),
    "unknown observation key": (lambda card, weights: (seen(card, colour="red"), weights)),
    "no network": (lambda card, weights: (without(card, "network"), weights)),
    "unknown network key": (lambda card, weights: (changed(card, depth=3), weights)),
    "weights cut off": (lambda card, weights: (json.dumps(card).encode(), weights[: len(weights) // 2])),
    "weights too long": (lambda card, weights: (json.dumps(card).encode(), weights + b"xx")),
    "weights empty": (lambda card, weights: (json.dumps(card).encode(), b"")),
    "weights garbage": (lambda card, weights: (json.dumps(card).encode(), b"hello world" * 9)),
    "weights NaN": (lambda card, weights: (json.dumps(card).encode(), filled(weights, np.nan))),
    "weights infinite": (lambda card, weights: (json.dumps(card).encode(), filled(weights, np.inf))),
    "another width": (lambda card, weights: (changed(card, width=16), weights)),
    "width not a number": (lambda card, weights: (changed(card, width="wide"), weights)),
    "unknown order": (lambda card, weights: (seen(card, order="tallest"), weights)),
    "no window": (lambda card, weights: (seen(card, window=0), weights)),
    "weights nil": (lambda card, weights: (json.dumps(card).encode(), b"\xc0")),
    "weights without leaves": (lambda card, weights: (json.dumps(card).encode(), b"\x80")),
    "weights of text": (lambda card, weights: (json.dumps(card).encode(), b"\x81\xa1a\xa1b")),
}


def message_of(folder) -> str:
    with pytest.raises(UserError) as caught:
        load_policy(str(folder), CONFIG)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message and "Traceback" not in message
    return message


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_checkpoint_is_one_clear_line(tmp_path, good, fault):
    for name, content in zip((CARD_FILE, WEIGHTS_FILE), FAULTS[fault](*good), strict=True):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    message = message_of(tmp_path)
    if fault.startswith("no ") and fault.split()[1] in ("card", "weights"):
        assert {"card": CARD_FILE, "weights": WEIGHTS_FILE}[fault.split()[1]] in message
    if fault == "another schema":
        assert "99" in message and "schema 1" in message


def test_a_missing_folder_or_a_file_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("x")
    for name in ("nowhere", "file"):
        assert CARD_FILE in message_of(tmp_path / name)
