"""An agent that draws legal actions at random, through Gymnasium: one environment, then eight in one program.

All schedulers are one agent here. An action has a number per scheduler: a line of its menu, of which the last is to
wait. `mask` says which lines are legal. Needs the extra `gym`.

    python examples/gymnasium_random.py
"""

import numpy as np

import jaxsched
from jaxsched.adapters.gymnasium_env import GymEnv, GymVectorEnv
from jaxsched.machine import allow_whole_loops

allow_whole_loops()  # before the first array: the clock's loops compile as one function

EPISODES, MANY, ROUNDS = 3, 8, 500


def draw(mask, rng):
    """For every scheduler a legal line; `mask` is int8[..., schedulers, lines]."""
    return np.where(mask, rng.random(mask.shape), -1.0).argmax(-1)


def play(env, episodes, rng):
    """Of every episode its rounds, its return, and what was told at its end."""
    ends = []
    for number in range(episodes):
        seen, _ = env.reset(seed=number)
        rounds, total, ended = 0, 0.0, False
        while not ended:
            seen, reward, terminated, truncated, info = env.step(draw(seen["mask"], rng))
            rounds, total, ended = rounds + 1, total + reward, terminated or truncated
        ends.append((rounds, total, info))
    return ends


def play_many(envs, rounds, rng):
    """The sum of rewards and the number of episodes that ended, of each environment."""
    seen, _ = envs.reset(seed=0)
    total, ends = np.zeros(envs.num_envs), np.zeros(envs.num_envs, int)
    for _ in range(rounds):
        seen, reward, terminated, truncated, _ = envs.step(draw(seen["mask"], rng))
        total, ends = total + reward, ends + (terminated | truncated)
    return total, ends


if __name__ == "__main__":
    inner = jaxsched.make("leaf-spine-4", schedulers=2, num_jobs=30, mean_duration_s=1800.0, load=0.9)
    rng = np.random.default_rng(0)
    for number, (rounds, total, info) in enumerate(play(GymEnv(inner), EPISODES, rng)):
        print(f"episode {number + 1}: {rounds} rounds, {info['finished']} jobs finished, return {total:.2f}")
    total, ends = play_many(GymVectorEnv(inner, MANY), ROUNDS, rng)
    print(f"{MANY} at once, {ROUNDS} rounds: {ends.sum()} episodes ended, mean sum of rewards {total.mean():.2f}")
