"""What runs one by one on a CPU is what runs side by side on an accelerator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.dynamics import batching
from jaxsched.dynamics.batching import (
    ACCELERATOR,
    CPU,
    PATHS,
    everywhere,
    if_needed,
    lane_by_lane,
    of_parts,
    only_where,
    set_rows,
    traced_for,
    with_shared,
    write_where,
)
from jaxsched.env.stages import transition
from jaxsched.policies.registry import parse
from tests.support import strategies
from tests.support.cases import few


def test_only_where_computes_what_is_needed_and_keeps_the_rest(monkeypatch):
    needed, values = jnp.array([True, False, True]), jnp.array([1.0, 2.0, 3.0])

    def run(needed):
        return only_where(needed, lambda i: values[i] * 10, lambda i: -values[i])

    alone = jax.jit(run)(needed)
    np.testing.assert_array_equal(alone, [10.0, -2.0, 30.0])
    monkeypatch.setattr(batching, "on_cpu", lambda: False)
    np.testing.assert_array_equal(jax.jit(lambda needed: run(needed))(needed), alone)


@pytest.mark.parametrize("least", [0, 49])
@pytest.mark.parametrize("needed", [0.0, 0.1, 1.0])
def test_of_parts_of_many_environments_is_that_of_each(needed, least):
    drawn = np.random.default_rng(3)
    parts, scale = drawn.random((6, 2, 5)).astype(np.float32), drawn.random(6).astype(np.float32)
    other = drawn.random((6, 2, 4)).astype(np.float32)
    wanted = drawn.random((6, 2, 4)) < needed  # of 48 places 9 at a time, or all

    def run(parts, scale, wanted, other):
        compute = lambda part, p, w: (scale * part.sum() + p, part[w] * w)
        return of_parts(parts, wanted, compute, (other, everywhere(jnp.float32(-2.0), wanted)), least=least)

    one_by_one = [jax.jit(run)(*one) for one in zip(parts, scale, wanted, other, strict=True)]
    with traced_for(ACCELERATOR):
        together = jax.jit(jax.vmap(lambda *args: run(*args)))(parts, scale, wanted, other)
    for k, leaf in enumerate(together):
        np.testing.assert_allclose(leaf, np.stack([one[k] for one in one_by_one]), rtol=1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("some", [0.0, 0.3, 1.0])
def test_what_an_environment_needs_is_computed_alone_and_of_many(some, path):
    """Of 12 environments five at a time, in one axis and in two; what is closed over is mapped or not."""
    drawn = np.random.default_rng(5)
    values, scale = drawn.random((12, 3)).astype(np.float32), np.float32(3.0)
    needed = drawn.random(12) < some

    def run(needed, value):
        return if_needed(needed, lambda: (value * scale, value.argmax()), (-value, jnp.int32(-1)), share=3 / 8)

    expected = np.where(needed[:, None], values * scale, -values), np.where(needed, values.argmax(-1), -1)
    with traced_for(path):
        alone = [jax.jit(lambda *one: run(*one))(*one) for one in zip(needed, values, strict=True)]
        beside = jax.jit(jax.vmap(lambda *one: run(*one)))(needed, values)
        in_two = jax.jit(jax.vmap(jax.vmap(lambda *one: run(*one))))(needed.reshape(3, 4), values.reshape(3, 4, 3))
    for k, leaf in enumerate(expected):
        np.testing.assert_allclose(np.stack([one[k] for one in alone]), leaf)
        np.testing.assert_allclose(beside[k], leaf)
        np.testing.assert_allclose(in_two[k].reshape(leaf.shape), leaf)


def test_lane_by_lane_does_not_run_as_long_as_the_slowest_lane():
    """Under a plain vmap every lane would take the turns of the longest one and be selected away."""
    turns = []

    def loop(limit):
        def turn(carry):
            jax.debug.callback(lambda: turns.append(1))
            return carry + 1

        return jax.lax.while_loop(lambda carry: carry < limit, turn, 0)

    limits = jnp.array([1, 5, 2])
    np.testing.assert_array_equal(jax.jit(jax.vmap(lane_by_lane(loop)))(limits), limits)
    jax.effects_barrier()
    assert len(turns) == 8


@pytest.mark.long
@pytest.mark.parametrize("spec", few([], ["greedy-wait:p1", "pack:area+backfill+forward"]))
def test_a_run_is_the_same_one_by_one_and_side_by_side(spec, monkeypatch):
    case = strategies.random_case(3, "two")
    shape = strategies.SHAPES["two"]
    config = shape.config()
    start = strategies.jit_start(config)(case.params, case.table)

    def run(intervals_s):
        policy = parse(spec)

        def one(interval_s):
            params = case.params.replace(interval_s=interval_s)

            def step(state, _):
                action = policy(jax.random.key(0), state, params)
                return transition(config, params, state, action)[0], None

            return jax.lax.scan(step, start, None, length=60)[0]

        return jax.vmap(one)(intervals_s)

    intervals_s = jnp.array([30.0, 60.0])
    alone = jax.jit(run)(intervals_s)
    monkeypatch.setattr(batching, "on_cpu", lambda: False)
    beside = jax.jit(lambda intervals_s: run(intervals_s))(intervals_s)
    assert (alone.records.finish >= 0).any()
    np.testing.assert_array_equal(alone.records.start, beside.records.start)
    np.testing.assert_allclose(alone.records.finish_offset_s, beside.records.finish_offset_s, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("shared", [False, True])
def test_constants_may_be_batched_by_a_condition(shared):
    """Under vmap a condition on a mapped value maps all that its branches use, constants included."""
    constant = jnp.arange(3.0)

    def add(x):
        return x + constant.sum()

    def add_part(part_of, x):
        return part_of(1) + x + constant.sum()

    def one(x):
        run = (lambda: with_shared(add_part)(x * jnp.arange(2.0), x)) if shared else (lambda: lane_by_lane(add)(x))
        return jax.lax.cond(x > 1, run, lambda: 0.0)

    values = jnp.array([0.0, 2.0, 5.0])
    expected = [0.0, 7.0, 13.0] if shared else [0.0, 5.0, 8.0]
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(values), expected)
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(values[:1]), expected[:1])


@pytest.mark.parametrize("batched", ["both", "large", "own"])
def test_with_shared_is_a_loop_over_lanes(batched):
    large, own = jnp.arange(12.0).reshape(2, 3, 2), jnp.array([1.0, 10.0])
    axes = (0 if batched != "own" else None, 0 if batched != "large" else None)
    given = (large if batched != "own" else large[0], own if batched != "large" else own[1])

    def pick(part_of, x):
        return part_of(2) * x

    alone = [
        pick(
            lambda i, lane=lane: (large[lane] if batched != "own" else large[0])[i],
            own[lane if batched != "large" else 1],
        )
        for lane in range(2)
    ]
    np.testing.assert_allclose(jax.jit(jax.vmap(with_shared(pick), in_axes=axes))(*given), jnp.stack(alone))


@pytest.mark.parametrize(("path", "least"), [(CPU, 0), (ACCELERATOR, 0), (ACCELERATOR, 13)])
@pytest.mark.parametrize("own_constant", [False, True])
def test_only_what_is_needed_is_written(path, least, own_constant):
    """Alone, and side by side in two axes, whether what the entries close over is mapped or not."""
    rng = np.random.default_rng(0)
    needed, values, given = rng.random((2, 3, 4)) < 0.5, rng.random((2, 3, 4, 2)), rng.random((2, 3, 4))
    constant = np.arange(3.0) if own_constant else np.array(2.0)

    def put(values, at, given, entry):
        return {"x": values["x"].at[at].add(entry[..., None], mode="drop")}

    def one(needed, values, given, constant):
        def entry(given):
            some, more = given
            return jnp.where(some, more * constant + 1.0, 0.0)

        with traced_for(path):
            return write_where(needed, entry, put, values, (needed, given), least=least)

    lanes = jax.vmap(one, in_axes=(0, 0, 0, 0 if own_constant else None))
    after = jax.jit(jax.vmap(lanes, in_axes=(0, 0, 0, None)))(needed, {"x": values}, given, constant)["x"]
    more = given * (constant[:, None] if own_constant else constant) + 1.0
    np.testing.assert_allclose(after, values + np.where(needed, more, 0.0)[..., None], rtol=1e-6)
    first = jax.jit(one)(needed[0, 0], {"x": values[0, 0]}, given[0, 0], constant[0] if own_constant else constant)
    np.testing.assert_array_equal(first["x"], after[0, 0])


@pytest.mark.parametrize("path", PATHS)
def test_rows_are_set_where_they_belong(path):
    row = np.array([[4, 0, 2], [1, 3, 3]])
    needed = np.array([[True, False, True], [False, False, True]])
    columns, values = np.zeros((2, 5)), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

    def one(*args):
        with traced_for(path):
            return set_rows(*args)

    expected = [[0.0, 0.0, 3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 6.0, 0.0]]
    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(columns, row, needed, values), expected)
    np.testing.assert_array_equal(jax.jit(one)(columns[0], row[0], needed[0], values[0]), expected[0])
    deeper = jax.jit(jax.vmap(jax.vmap(one), in_axes=(None, 0, 0, 0)))(columns, row[None], needed[None], values[None])
    np.testing.assert_array_equal(deeper, [expected])
