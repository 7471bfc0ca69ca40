"""The device program of a run: chunks of `observe -> policy -> transition`, compiled once per size of the tables.

Without lanes the state is that of one environment. With lanes every leaf has a leading axis S (one lane per seed), and
the chunk goes on until all lanes are done; a lane that is done idles in an empty cluster, which changes no record.
On a CPU one lane after the other is 2 to 4 times cheaper than vmapped lanes (measured: under vmap every inner loop
selects between whole states); an accelerator wants lanes.
"""

import dataclasses
import threading
import time

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.env.environment import is_finished, transition
from jaxsched.env.observation import observe
from jaxsched.env.state import FINISHED, WAITING, EnvConfig, EnvParams, State
from jaxsched.env.transition import admit
from jaxsched.evaluation.contenders import Contender
from jaxsched.machine import loop_options
from jaxsched.pytree import Pytree
from jaxsched.simulation.engines.jax.slots import Sizes

CHUNK_STEPS = 1024  # decision rounds per call: tenths of a second on a CPU


class Pulse(Pytree):
    """What the host learns after a chunk; leaves `[]`, or `[S]` with lanes."""

    done: Array  # bool, finished or past the horizon
    queue_full: Array  # bool, some queue could not take a job from every scheduler
    running_full: Array  # bool, a partition has no free running slot and could have more
    steps: Array  # int32, decision rounds of this chunk
    clock: Array  # int32, boundary; of a lane that is done, the one after the last finish
    arrived: Array  # int32, jobs so far, rejected ones included
    started: Array  # int32, jobs so far
    finished: Array  # int32, jobs so far
    rejected: Array  # int32, jobs so far
    running: Array  # int32, jobs now
    peak_running: Array  # int32, most jobs that ran at once in a partition during this chunk
    peak_queue: Array  # int32, the longest queue of a partition during this chunk
    illegal: Array  # int32, illegal actions so far


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A compiled chunk: `run(state, params, key, weights) -> state, Pulse`; the state is donated.

    `key` is `[S]` with lanes; `weights` are the contender's.
    """

    run: jax.stages.Compiled
    compile_s: float


class Program:
    """The chunks of one contender, by table sizes; safe to share between threads."""

    def __init__(self, one: Contender, config: EnvConfig, most_running: int, *, lanes: bool) -> None:
        self.contender, self.config, self.most_running, self.lanes = one, config, most_running, lanes
        self._chunks: dict[Sizes, Chunk] = {}
        self._lock = threading.Lock()

    @property
    def smallest(self) -> Sizes:
        """The sizes a run starts with."""
        return Sizes(self.config.running_slots, self.config.queue_slots)

    @property
    def chunks(self) -> list[Chunk]:
        """All that have been compiled so far."""
        with self._lock:
            return list(self._chunks.values())

    def chunk(self, sizes: Sizes, state: State, params: EnvParams, key: Array) -> Chunk:
        """The chunk for tables of `sizes`; compiled for arguments like these if it is the first time."""
        with self._lock:
            if sizes not in self._chunks:
                config = dataclasses.replace(self.config, running_slots=sizes.running, queue_slots=sizes.queue)
                begin = time.perf_counter()
                function = jax.jit(self._function(config), donate_argnums=0)
                run = function.lower(state, params, key, self.contender.weights).compile(loop_options())
                self._chunks[sizes] = Chunk(run, time.perf_counter() - begin)
            return self._chunks[sizes]

    def _function(self, config: EnvConfig):
        may_grow = config.running_slots < self.most_running

        def begin(state: State) -> State:  # arrivals that a smaller queue held back
            return admit(state.replace(backlogged=jnp.zeros_like(state.backlogged), peak_queue=jnp.int32(0)))

        def step(weights: chex.ArrayTree, state: State, params: EnvParams, key: Array, index: Array) -> State:
            policy = self.contender.policy(config, weights)
            action = policy(jax.random.fold_in(key, index), observe(config, params, state), state, params)
            return transition(dataclasses.replace(config, asked=policy.asked), params, state, action)[0]

        def signals(state: State, params: EnvParams) -> tuple[Array, Array, Array]:
            over = is_finished(state) | (state.clock >= params.horizon)
            room = (state.queue < 0).sum(-1).min()  # every scheduler may forward a job to the same queue
            queue_full = (state.backlogged > 0) | (room < state.queue.shape[0])
            running_full = (state.running.job >= 0).all(-1).any() & may_grow
            return over, queue_full, running_full

        def running_now(state: State) -> Array:
            return (state.running.job >= 0).sum(-1, dtype=jnp.int32)

        if self.lanes:
            begin, step = jax.vmap(begin), jax.vmap(step, in_axes=(None, 0, None, 0, None))
            signals, running_now = jax.vmap(signals, in_axes=(0, None)), jax.vmap(running_now)

        def chunk(state: State, params: EnvParams, key: Array, weights: chex.ArrayTree) -> tuple[State, Pulse]:
            def unfinished(carry) -> Array:
                state, index, _ = carry
                done, queue_full, running_full = signals(state, params)
                return (index < CHUNK_STEPS) & ~done.all() & ~(queue_full | running_full).any()

            def body(carry):
                state, index, peak = carry
                state = step(weights, state, params, key, index)
                return state, index + 1, jnp.maximum(peak, running_now(state).max(-1))

            state = begin(state)
            start = (state, jnp.int32(0), running_now(state).max(-1))
            state, steps, peak = lax.while_loop(unfinished, body, start)
            done, queue_full, running_full = signals(state, params)
            status, home = state.records.status, state.jobs.home
            lost = (home < 0) & (jnp.arange(home.shape[-1]) < state.next_job[..., None])
            ends = state.records.finish + (state.records.finish_offset_s / params.interval_s).astype(jnp.int32)
            last = ends.max(-1) + 1  # the clock of a lane that is done may have skipped far beyond
            return state, Pulse(
                done=done,
                queue_full=queue_full,
                running_full=running_full,
                steps=steps,
                clock=jnp.where(done, jnp.minimum(state.clock, last), state.clock),
                arrived=state.next_job,
                started=(status != WAITING).sum(-1, dtype=jnp.int32),
                finished=(status == FINISHED).sum(-1, dtype=jnp.int32),
                rejected=lost.sum(-1, dtype=jnp.int32),
                running=running_now(state).sum(-1),
                peak_running=peak,
                peak_queue=state.peak_queue,
                illegal=state.illegal,
            )

        return chunk
