"""Counting kernels and bytes of a scheduled program."""

import jax
import jax.numpy as jnp

from benchmarks import hlo
from jaxsched.env.pool import put_if

TEXT = """HloModule jit_run, is_scheduled=true

%fused (p0: f32[8,100], p1: s32[]) -> f32[8,100] {
  %p0 = f32[8,100]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %row = f32[1,100]{1,0} dynamic-slice(%p0, %p1, %p1), dynamic_slice_sizes={1,100}
  %twice = f32[1,100]{1,0} add(%row, %row)
  ROOT %put = f32[8,100]{1,0} dynamic-update-slice(%p0, %twice, %p1, %p1)
}

%body (state: (f32[8,100], s32[])) -> (f32[8,100], s32[]) {
  %state = (f32[8,100]{1,0}, s32[]) parameter(0)
  %x = f32[8,100]{1,0} get-tuple-element(%state), index=0
  %i = s32[] get-tuple-element(%state), index=1
  %new = f32[8,100]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused
  ROOT %out = (f32[8,100]{1,0}, s32[]) tuple(%new, %i)
}

%condition (state.1: (f32[8,100], s32[])) -> pred[] {
  %state.1 = (f32[8,100]{1,0}, s32[]) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=1
  ROOT %less = pred[] compare(%i.1, %i.1), direction=LT
}

ENTRY %main (a: f32[8,100], n: s32[]) -> f32[8,100] {
  %a = f32[8,100]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %start = (f32[8,100]{1,0}, s32[]) tuple(%a, %n)
  %known = (f32[8,100]{1,0}, s32[]) while(%start), condition=%condition, body=%body, metadata={op_name="rounds"}, backend_config={"known_trip_count":{"n":"7"}}
  %unknown = (f32[8,100]{1,0}, s32[]) while(%known), condition=%condition, body=%body, metadata={op_name="clock"}
  %end = f32[8,100]{1,0} get-tuple-element(%unknown), index=0
  ROOT %copied = f32[8,100]{1,0} copy(%end)
}
"""  # noqa: E501


def test_kernels_and_bytes_loop_by_loop():
    whole = hlo.program(TEXT)
    rounds, clock = whole.within
    assert (whole.kernels, whole.bytes) == (1, 2 * 3200)  # a copy reads and writes
    assert (rounds.name, rounds.turns, rounds.kernels) == ("rounds", 7, 1)
    assert rounds.bytes == 400 + 4 + 400  # a row in, the index, a row out: the array itself stays where it is
    assert (clock.name, clock.turns, clock.kernels) == ("clock", None, 2)  # the condition is looked at in every turn
    assert [loop.name for loop in whole.every()] == ["program", "rounds", "clock"]


def test_a_program_that_jax_compiles():
    def run(x):
        return jax.lax.while_loop(lambda x: x.sum() < 10.0, lambda x: x + jnp.sin(x), x)

    text = jax.jit(run).lower(jnp.ones(1000)).compile().as_text()
    (loop,) = hlo.program(text).within
    assert loop.turns is None
    assert loop.bytes >= 2 * 4000  # the array in and out at least


def test_a_lone_environment_reads_a_member_of_the_pool_only_when_it_starts_anew():
    """XLA takes out of a loop what is the same in each turn: a member's job list was read in every round."""

    def run(done, number, pool, old):
        return put_if(done, number, pool, old)

    pool, old = jnp.zeros((8, 4099)), jnp.ones((1, 4099))
    lowered = jax.jit(run, donate_argnums=3).lower(jnp.array([True]), jnp.array([3]), pool, old)
    whole = hlo.program(lowered.compile().as_text())
    assert whole.bytes < old.nbytes
    assert whole.within[0].bytes >= old.nbytes
