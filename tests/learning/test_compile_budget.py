"""How long the programs take to compile: a budget, without the cache of compiled programs.

In CPU seconds, which other work on the machine moves less than the clock on the wall: XLA compiles on all cores, so
that the budgets of 10 s for a step and 40 s for a training chunk on two idle cores are twice as many, and a little more
on a busy machine.
"""

import time

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxsched.env.environment import ClusterEnv, Episodes
from jaxsched.env.state import wait_action
from jaxsched.learning.chunk import chunk, initial
from jaxsched.learning.config import quickstart_config
from jaxsched.learning.setting import make_setting
from jaxsched.machine import loop_options

STEP_S, CHUNK_S = 20.0, 90.0


@pytest.fixture
def uncached():
    """Nothing is found on disk. Whether it may be is looked at once, hence the resets."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def cpu_seconds_to_compile(function, *args) -> float:
    started = time.process_time()
    jax.jit(function).lower(*args).compile(loop_options())
    return time.process_time() - started


@pytest.mark.long
def test_step_and_chunk_compile_within_their_budgets(uncached):
    setting = make_setting(quickstart_config())
    state = jax.eval_shape(lambda: initial(setting))
    env = ClusterEnv(setting.static)
    one = jax.eval_shape(lambda worlds: jax.tree.map(lambda leaf: leaf[0], worlds), state.worlds)
    params = Episodes(env=setting.worlds.params, starts=one)  # of which none is begun
    action = jax.eval_shape(lambda: wait_action(params.env.cluster))
    step_s = cpu_seconds_to_compile(
        lambda state, action: (after := env.step_env(state, action, params), env.observe(after[0], params)), one, action
    )
    chunk_s = cpu_seconds_to_compile(lambda state: chunk(setting, state), state)
    assert step_s < STEP_S and chunk_s < CHUNK_S, (step_s, chunk_s)
