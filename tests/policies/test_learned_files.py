"""The learned policy's files: as saved, so read; and every fault is one clear line."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

from jaxsched.cluster.build import Shape, pad, shape_of
from jaxsched.env.state import FORWARD, PLACE
from jaxsched.errors import UserError
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.policies.checkpoint import CARD_FILE, WEIGHTS_FILE, load_policy, save_policy
from jaxsched.policies.learned import learned_policy, sizes_of
from tests.support import strategies
from tests.support.learned_runs import CONFIG, NET, QUEUE, busy_case, jit_offered, mid_run_state, noisy, shaped


@pytest.mark.slower
def test_a_saved_policy_acts_as_before_in_whatever_environment(tmp_path):
    """The queue discipline it was trained with comes along."""
    weights, case, state = noisy(1, 0.1), busy_case(), mid_run_state()
    eager = SchedulerNetwork(width=8, may_wait=False)
    save_policy(tmp_path / "deep" / "it", eager, weights, QUEUE, {"chunk": 3})
    assert sorted(path.name for path in (tmp_path / "deep" / "it").iterdir()) == sorted([CARD_FILE, WEIGHTS_FILE])
    card = json.loads((tmp_path / "deep" / "it" / CARD_FILE).read_text())
    assert (card["what"], card["chunk"], card["network"]["width"]) == ("checkpoint", 3, 8) and card["versions"]["jax"]
    loaded = load_policy(tmp_path / "deep" / "it")
    assert loaded.name == str(tmp_path / "deep" / "it")

    def act(policy):
        program = jax.jit(lambda params, state: policy(jax.random.key(9), state, params))
        return program(case.params, state)

    before, after = act(learned_policy("it", eager, weights, QUEUE)), act(loaded)
    assert (before.kind == PLACE).any()
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_saved_weights_are_bitwise_those_that_were_saved(tmp_path):
    weights = shaped(2)
    save_policy(tmp_path, NET, weights, QUEUE, {})
    read = serialization.msgpack_restore((tmp_path / WEIGHTS_FILE).read_bytes())
    jax.tree.map(np.testing.assert_array_equal, weights, jax.tree.map(jnp.asarray, read))


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> tuple[dict, bytes]:
    """The card and the weights of a checkpoint without fault."""
    folder = tmp_path_factory.mktemp("good")
    save_policy(folder, NET, shaped(3), QUEUE, {"chunk": 1})
    return json.loads((folder / CARD_FILE).read_text()), (folder / WEIGHTS_FILE).read_bytes()


def changed(card: dict, **network) -> bytes:
    return json.dumps(card | {"network": card["network"] | network}).encode()


def queued(card: dict, **queue) -> bytes:
    return json.dumps(card | {"queue": card["queue"] | queue}).encode()


def without(card: dict, key: str) -> bytes:
    return json.dumps({name: value for name, value in card.items() if name != key}).encode()


def filled(weights: bytes, value: float) -> bytes:
    """The same tree of weights, all of them `value`."""
    tree = serialization.msgpack_restore(weights)
    return serialization.msgpack_serialize(jax.tree.map(lambda leaf: np.full_like(leaf, value), tree))


def of_kind(weights: bytes, kind: type) -> bytes:
    """The same tree of weights, as numbers of another kind."""
    tree = serialization.msgpack_restore(weights)
    return serialization.msgpack_serialize(jax.tree.map(lambda leaf: leaf.astype(kind), tree))


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
    "no queue": (lambda card, weights: (without(card, "queue"), weights)),
    "unknown queue key": (lambda card, weights: (queued(card, colour="red"), weights)),
    "no network": (lambda card, weights: (without(card, "network"), weights)),
    "unknown network key": (lambda card, weights: (changed(card, depth=3), weights)),
    "weights cut off": (lambda card, weights: (json.dumps(card).encode(), weights[: len(weights) // 2])),
    "weights too long": (lambda card, weights: (json.dumps(card).encode(), weights + b"xx")),
    "weights empty": (lambda card, weights: (json.dumps(card).encode(), b"")),
    "weights garbage": (lambda card, weights: (json.dumps(card).encode(), b"hello world" * 9)),
    "weights NaN": (lambda card, weights: (json.dumps(card).encode(), filled(weights, np.nan))),
    "weights infinite": (lambda card, weights: (json.dumps(card).encode(), filled(weights, np.inf))),
    "wide without end": (lambda card, weights: (changed(card, width=10**9), weights)),
    "exchange without end": (lambda card, weights: (changed(card, exchange_rounds=10**9), weights)),
    "may_wait as text": (lambda card, weights: (changed(card, may_wait="false"), weights)),
    "prior as a number": (lambda card, weights: (changed(card, prior=1), weights)),
    "window without end": (lambda card, weights: (queued(card, window=10**9), weights)),
    "sizes without end": (lambda card, weights: (json.dumps(card | {"sizes": [10**12] * 4}).encode(), weights)),
    "a key twice": (lambda card, weights: (json.dumps(card).replace('{"', '{"chunk": 2, "', 1).encode(), weights)),
    "a number of 400 digits": (lambda card, weights: (changed(card, width=10**400), weights)),
    "nested without end": (lambda card, weights: (b"[" * 100_000, weights)),
    "weights of bool": (lambda card, weights: (json.dumps(card).encode(), of_kind(weights, np.bool_))),
    "weights of int8": (lambda card, weights: (json.dumps(card).encode(), of_kind(weights, np.int8))),
    "weights of complex": (lambda card, weights: (json.dumps(card).encode(), of_kind(weights, np.complex64))),
    "weights of float64": (lambda card, weights: (json.dumps(card).encode(), of_kind(weights, np.float64))),
    "another width": (lambda card, weights: (changed(card, width=16), weights)),
    "width not a number": (lambda card, weights: (changed(card, width="wide"), weights)),
    "unknown order": (lambda card, weights: (queued(card, order="tallest"), weights)),
    "no window": (lambda card, weights: (queued(card, window=0), weights)),
    "reserve neither true nor false": (lambda card, weights: (queued(card, reserve="no"), weights)),
    "reserve without backfill": (lambda card, weights: (queued(card, reserve=True, backfill=False), weights)),
    "backfill neither true nor false": (lambda card, weights: (queued(card, backfill=1), weights)),
    "weights nil": (lambda card, weights: (json.dumps(card).encode(), b"\xc0")),
    "weights without leaves": (lambda card, weights: (json.dumps(card).encode(), b"\x80")),
    "weights of text": (lambda card, weights: (json.dumps(card).encode(), b"\x81\xa1a\xa1b")),
}


def message_of(folder) -> str:
    with pytest.raises(UserError) as caught:
        load_policy(str(folder))
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


@pytest.mark.slower
@pytest.mark.parametrize("most", [pytest.param(None, marks=pytest.mark.long), 0])
def test_a_policy_trained_without_forwarding_never_forwards(tmp_path, most):
    """Its card says so, whatever the environment allows; else it acts as in an environment that allows none."""
    weights = noisy(1, 0.1)
    to_act_and_forward = jnp.array([2.0, 2.0, 4.0, 1.0, 100.0, 100.0, 0.0, -100.0])
    keen = {"params": weights["params"] | {"belief": to_act_and_forward}}
    case, state = busy_case(), mid_run_state()
    save_policy(tmp_path, NET, keen, QUEUE, {}, max_forwards=most)
    loaded = load_policy(str(tmp_path))

    @jax.jit
    def act(params):
        return loaded(jax.random.key(0), state, params)

    assert int(case.params.max_forwards) > 0
    action = act(case.params)
    assert bool((action.kind == FORWARD).any()) == (most is None)
    if most == 0:
        jax.tree.map(np.testing.assert_array_equal, action, act(case.params.replace(max_forwards=jnp.int32(0))))


@pytest.mark.slow
def test_a_flat_policy_is_for_clusters_of_its_sizes(tmp_path):
    case, state = busy_case(), mid_run_state()
    obs, menu = jit_offered()(case.params, state)
    flat = SchedulerNetwork(width=8, kind="flat")
    weights = jax.jit(flat.init)(jax.random.key(0), obs, menu)
    sizes = sizes_of(obs)
    save_policy(tmp_path, flat, weights, QUEUE, {}, sizes=sizes)
    loaded = load_policy(str(tmp_path))

    def act(params, state):
        return loaded(jax.random.key(0), state, params)

    jax.eval_shape(act, case.params, state)
    larger = Shape(**{n: size + (size > 0) for n, size in dataclasses.asdict(shape_of(case.cluster)).items()})
    params = case.params.replace(cluster=pad(case.cluster, larger))
    other = jax.eval_shape(strategies.jit_start(CONFIG), params, case.table)
    with pytest.raises(UserError, match=f"flat network is for clusters of {sizes[0]} schedulers x {sizes[1]} servers"):
        jax.eval_shape(act, params, other)
    save_policy(tmp_path, flat, weights, QUEUE, {})
    with pytest.raises(UserError, match="sizes of a flat network"):
        load_policy(str(tmp_path))
    save_policy(tmp_path, flat, weights, QUEUE, {}, sizes=(sizes[0] + 1, *sizes[1:]))
    with pytest.raises(UserError, match="has shape"):
        load_policy(str(tmp_path))


def test_a_negative_number_of_forwards_is_refused(tmp_path):
    save_policy(tmp_path, NET, noisy(2), QUEUE, {}, max_forwards=-1)
    with pytest.raises(UserError, match="max_forwards"):
        load_policy(str(tmp_path))
