"""Wrong calls of all that `import jaxsched` offers and of its objects' methods: a UserError at the door, or a result.

JAXSCHED_CALLS=20000 tries more than the suite does.
"""

import functools
import inspect
import os
import random
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

import jaxsched
from jaxsched.errors import UserError

CALLS = int(os.environ.get("JAXSCHED_CALLS", "700"))
PARTS = 7
TRACED = (".reset", ".step", ".step_env", ".observe", ".seen", "order")  # as in a program: eagerly they take long
WRONG: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 10**30, -(2**63), 0.5, -2.5, float("nan"), float("inf"), 1e300, 1e-400, 1j),
    *("", " ", "x", "pack", "leaf-spine-2", "leaf-spin-2", "philly-like", "nothing.csv", ".", "/", "/dev/null", "\0"),
    *("a" * 5000, "\udcff", "pack:sjf+", "pack:hysteresis", "default", "jax", "no.yaml", "1,2", b"pack", bytearray(2)),
    *([], [None], [[1], [2, 3]], [1, "a"], ["pack"], ["pack", "pack"], (), (1, 2), {}, {"a": 1}, {1: 2}, {"pack"}),
    *(object(), type, int, print, len, lambda: None, lambda *_: None, range(3), iter(()), Ellipsis, NotImplemented),
    *(np.zeros(0), np.zeros((2, 2)), np.array("a"), np.float32(1), np.int64(-3), np.array([np.nan]), jnp.zeros(3)),
    *(jnp.int32(1), Path(), Path("nothing"), UserError("x"), Exception, types.SimpleNamespace()),
]


@functools.cache
def doors() -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Everything that can be called, with a good call of it, which is not made here."""
    menu = jaxsched.make("leaf-spine-2", num_jobs=4, episodes=1)
    key = jax.random.key(0)
    _, turn = jax.jit(menu.reset)(key)  # at once: operation by operation takes long
    env, params = menu.inner, menu.params
    comparison = jaxsched.compare("leaf-spine-2", "philly-like", "pack", num_jobs=4, seeds=1)
    cluster = jaxsched.get_cluster("leaf-spine-2")
    jobs = jaxsched.make_job_list([0.0, 1.0], [5.0, 6.0], [1, 2])
    act = env.action_space(params).sample(key)
    rule = jaxsched.PolicySpec("pack")
    found: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
        "ClusterEnv": (jaxsched.ClusterEnv, (env.config,), {"queue": env.queue}),
        "Comparison": (
            jaxsched.Comparison,
            (comparison.rows, 1.0, comparison.config, comparison.versions, comparison.settings),
            {},
        ),
        "Discipline": (jaxsched.Discipline, (), {"order": "sjf", "backfill": True, "window": 4, "hysteresis": 0.1}),
        "Policy": (jaxsched.Policy, ("mine", rule), {"weights": None}),
        "PolicySpec": (jaxsched.PolicySpec, ("pack",), {"queue": jaxsched.Discipline(), "threshold": 1.0, "search": 0}),
        "Settings": (jaxsched.Settings, (), {"interval_s": 60.0, "knows": "runtimes", "rounds": 8, "models": None}),
        "WorkloadOptions": (jaxsched.WorkloadOptions, (), {"load": 0.8, "num_jobs": 3, "total_gpus": 8, "mix": "muri"}),
        "capacity": (jaxsched.capacity, (turn, turn), {}),
        "compare": (jaxsched.compare, (cluster, jobs, "pack"), {"settings": jaxsched.Settings(), "config": {}}),
        "compare_worlds": (
            jaxsched.compare_worlds,
            ("nowhere", "pack"),
            {"settings": jaxsched.Settings(), "first": 0, "num_jobs": 3, "report": None, "executor": None},
        ),
        "fill_in_order": (jaxsched.fill_in_order, (jnp.arange(3), jnp.arange(3), jnp.int32(2)), {}),
        "get_cluster": (jaxsched.get_cluster, ("leaf-spine-2",), {"schedulers": 1, "gpu_speeds": None}),
        "get_workload": (
            jaxsched.get_workload,
            ("philly-like", jaxsched.WorkloadOptions(num_jobs=3, total_gpus=8)),
            {},
        ),
        "make": (jaxsched.make, ("nowhere",), {"num_jobs": 4, "episodes": 1, "reward": None, "in_turns": False}),
        "make_job_list": (
            jaxsched.make_job_list,
            ([0.0], [5.0], [1]),
            {"ps": 0, "model": 0, "tenant": 0, "home": [0], "milli": 1000, "user": "", "job_id": ["a"], "models": 15},
        ),
        "policy": (jaxsched.policy, ("pack",), {"order": "sjf", "backfill": True, "forward": "stay", "name": "x"}),
        "env.reset": (env.reset, (key, params), {}),
        "env.step": (env.step, (key, turn.played, act, params), {}),
        "env.step_env": (env.step_env, (turn.played, act, params), {}),
        "env.observe": (env.observe, (turn.played, params), {}),
        "env.action_space": (env.action_space, (params,), {}),
        "env.observation_space": (env.observation_space, (params,), {}),
        "menu.reset": (menu.reset, (key,), {"params": params}),
        "menu.step": (menu.step, (key, turn, jnp.zeros(2, jnp.int32)), {"params": params}),
        "menu.seen": (menu.seen, (turn,), {}),
        "menu.policy": (menu.policy, ("mine", print), {"weights": None}),
        "menu.action_space": (menu.action_space, (), {"params": params}),
        "menu.observation_space": (menu.observation_space, (), {"params": params}),
    }
    return found


def wrong_call(rng: random.Random, name: str) -> tuple[Any, list[Any], dict[str, Any]]:
    """One or two arguments are something else, one is missing, one too many, or one has a name that is not known."""
    call, args, options = doors()[name]
    given, named = list(args), dict(options)
    for _ in range(rng.choice((1, 1, 2))):
        how = rng.random()
        if how < 0.1:
            named[rng.choice(("quue", "polices", "shedulers", "x"))] = rng.choice(WRONG)
        elif how < 0.15 and given:
            given.pop()
        elif how < 0.2:
            given.append(rng.choice(WRONG))
        elif given and (not named or how < 0.6):
            given[rng.randrange(len(given))] = rng.choice(WRONG)
        elif named:
            named[rng.choice([*named])] = rng.choice(WRONG)
    return call, given, named


def test_every_name_has_a_door():
    names = {name for name in dir(jaxsched) if not name.startswith("_")} - {"UserError"}
    assert names <= {name.partition(".")[0] for name in doors()}
    for call, *_ in doors().values():
        made = call.__init__ if inspect.isclass(call) else call
        assert hasattr(made, "__wrapped__"), call


@pytest.mark.parametrize("part", range(PARTS))
def test_wrong_calls_end_at_the_door(part):
    refused = 0
    for number in range(part, CALLS, PARTS):
        rng = random.Random(number)
        name = rng.choice([*doors()])
        call, given, named = wrong_call(rng, name)
        try:
            if name.endswith(TRACED):
                jax.eval_shape(lambda call=call, given=given, named=named: (call(*given, **named), None)[1])
            else:
                call(*given, **named)
        except UserError as error:
            refused += 1
            assert 10 < len(str(error)) < 1500 and "\n" not in str(error), (number, name)
        except TypeCheckError:
            pass  # the suite's own check of shapes: arrays of NumPy are taken, too
        except Exception as error:
            error.add_note(f"call {number}: {name} with {str(given)[:300]}, {str(named)[:300]}")
            raise
    assert refused > CALLS / PARTS / 3
