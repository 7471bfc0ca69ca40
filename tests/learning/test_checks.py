"""`train --debug-checks`: a sound run is the run it would be, the first fault ends it and says where it is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.checks import FAULTS, findings
from jaxsched.errors import UserError
from jaxsched.io.json_file import read_rows
from jaxsched.learning.draws import params_axes, params_of_all
from jaxsched.learning.loop import METRICS_FILE, train
from jaxsched.learning.rollout import UNSOUND, fault_code, stop_at_fault
from jaxsched.learning.setting import make_setting


def test_shards_are_refused(config):
    with pytest.raises(UserError, match=r"ppo\.shards is 2"):
        make_setting(dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, shards=2)), checks=True)


@pytest.mark.long
def test_the_first_fault_ends_the_training(config, state, step, tmp_path, monkeypatch):
    _, metrics = step(state)
    spoilt_from = int(state.worlds.clock[2]) + int(metrics["intervals"]) // 4 + 4  # in a later chunk than the first

    def spoilt(params, state):
        wrong = state.clock >= spoilt_from
        return findings(params, state.replace(free=state.free.at[1, 0, 0].add(-1 * wrong)))

    monkeypatch.setattr("jaxsched.learning.rollout.findings", spoilt)
    pattern = r"^debug check of chunk [2-8]: GPUs .*: partition 1 of environment [0-3], boundary \d+, round \d+$"
    with pytest.raises(UserError, match=pattern):
        train(config, tmp_path, debug_checks=True)
    first = read_rows(tmp_path / METRICS_FILE)[0]
    assert all(first[name] == pytest.approx(value.item(), rel=1e-5) for name, value in metrics.items())


def test_each_fault_has_its_words():
    codes = np.zeros((3, 2, 4), np.int32)
    stop_at_fault(1, codes, {"w": np.zeros(2)})
    for number, fault in enumerate((*FAULTS, UNSOUND), 1):
        codes[1, 1], codes[2, 0] = (number, 7, 40, 2), (1, 0, 0, 0)
        with pytest.raises(UserError, match=f"{fault.what}: {fault.of} 7 of environment 1, boundary 40, round 2$"):
            stop_at_fault(1, codes, {"w": np.zeros(2)})
    with pytest.raises(UserError, match="chunk 5: weights that are not finite"):
        stop_at_fault(5, np.zeros_like(codes), {"w": np.array([1.0, np.nan])})


def test_codes_say_what_is_wrong_first(setting, state):
    """Of a sound world nothing, of a spoilt one the fault, its place and its time."""
    worlds, params, axes = state.worlds, params_of_all(setting.worlds, state.draws), params_axes(setting.worlds)
    code = jax.jit(jax.vmap(fault_code, in_axes=(axes, 0, 0)))
    said = jnp.zeros(worlds.queue.shape[:2])
    assert not code(params, worlds, said)[:, 0].any()
    assert code(params, worlds, said.at[3, 1].set(jnp.nan))[3, :2].tolist() == [len(FAULTS) + 1, 1]
    spoilt = worlds.replace(free=worlds.free.at[2, 1, 0, 0].add(-100))
    found = code(params, spoilt, said)
    assert found[2].tolist() == [3, 1, int(worlds.clock[2]), int(worlds.round[2])] and not found[:2, 0].any()
