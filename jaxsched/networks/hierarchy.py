"""The hierarchical graph network: one encoding of the cluster, light heads for jobs, placements, forwards and waiting.

Parameters are shared by all schedulers. Sizes of the cluster never enter a parameter's shape, but in the flat encoder,
which is there to compare with.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, PyTree

from jaxsched.dynamics.batching import everywhere, of_parts, on_cpu
from jaxsched.env.observation import Menu, Observation
from jaxsched.networks.graphs import Level, Talk, containment, downward, exchange, hear, upward
from jaxsched.pytree import Pytree, zeros_of

# What a soft greedy-wait believes at first, in the order in which `SchedulerNetwork.decide` reads it.
BELIEF = (0.3, 2.0, 4.0, 2.0, 0.0, 2.0, 2.0, 2.0)
# Of who looks ahead: what is worth waiting for comes after forwards, and these after all else (`policies.menu`).
AHEAD = (1.0, 2.0, 12.0, 2.0, 0.0, 2.0, 2.0, 10.0)
APPRAISED = 0.25  # share of all parts of menus that are appraised at a time
PART = 16  # options of a menu that are appraised together; measured on a CPU beside 8 and 32
BLOCK = 96  # parts of menus that a CPU appraises at a time; likewise beside 48 and 192
_CERTAIN = 1e9  # a logit; finite, so that what is multiplied by its probability of 0 stays a number


class Heads(Pytree):
    """What the network says."""

    place: Float32[Array, "P K"]  # logits of placements
    forward: Float32[Array, "P P"]  # logits of forwarding the blocked job
    act: Float32[Array, "P"]  # logit of acting at all rather than waiting
    value: Float32[Array, "P"]


class Embeddings(Pytree):
    """What the encoder makes of an observation, of the schedulers of one environment or of any others in a row."""

    group: Float32[Array, "P NK H"]
    scheduler: Float32[Array, "P H"]
    window: Float32[Array, "P W H"]  # jobs
    context: Float32[Array, "P 3*H"]  # scheduler, window and blocked job


class Appraisal(Pytree):
    """What the network thinks of the placements on a menu, for the schedulers of some `Embeddings`."""

    place: Float32[Array, "P K"]  # logits without the prior
    best: Float32[Array, "P H"]  # of all of them, by feature


class MessagePassing(nn.Module):
    """One round of messages on a weighted graph: a jraph GraphNetwork with a residual update of those that listen."""

    width: int

    @nn.compact
    def __call__(
        self,
        talk: Callable[[Array], Talk],
        speakers: Float32[Array, "speakers F"],
        listeners: Float32[Array, "listeners H"],
    ) -> Float32[Array, "listeners H"]:
        weigh = nn.Dense(self.width, use_bias=False, name="heard")
        first = speakers.shape[0] < listeners.shape[0]  # linear, so it may as well weigh what the fewer nodes say
        signals = nn.relu(nn.Dense(self.width, name="message")(speakers))
        signals = weigh(signals) if first else signals
        sums = hear(talk(signals))
        own = nn.Dense(self.width, name="own")(listeners)
        return listeners + nn.relu(own + (sums if first else weigh(sums)))


class Encoder(nn.Module):
    """Embeddings of groups and schedulers: up the hierarchy, across schedulers, down again."""

    width: int
    exchange_rounds: int
    hierarchy: bool

    @nn.compact
    def __call__(self, obs: Observation) -> tuple[Float32[Array, "*batch P NK H"], Float32[Array, "*batch P H"]]:
        def embed(name: str, features: Float32[Array, "*nodes F"]) -> Float32[Array, "all H"]:
            return nn.relu(nn.Dense(self.width, name=name)(features.reshape(-1, features.shape[-1])))

        group, server = embed("group", obs.group), embed("server", obs.server)
        rack, scheduler = embed("rack", obs.rack), embed("scheduler", obs.scheduler)
        low, middle, high = containment(obs)
        if self.hierarchy:
            server = self._up("group_to_server", low, group, server)
            rack = self._up("server_to_rack", middle, server, rack)
            scheduler = self._up("rack_to_scheduler", high, rack, scheduler)
        for i in range(self.exchange_rounds):
            between = functools.partial(exchange, obs.group_mask.any((-2, -1)))
            scheduler = MessagePassing(self.width, name=f"exchange_{i}")(between, scheduler, scheduler)
        if self.hierarchy:
            rack = self._down("scheduler_to_rack", high, rack, scheduler)
            server = self._down("rack_to_server", middle, server, rack)
            group = self._down("server_to_group", low, group, server)
        lead = obs.group_mask.shape[:-2]
        return group.reshape(*lead, -1, self.width), scheduler.reshape(*lead, self.width)

    def _up(
        self, name: str, level: Level, children: Float32[Array, "children H"], parents: Float32[Array, "parents H"]
    ) -> Float32[Array, "parents H"]:
        return MessagePassing(self.width, name=name)(functools.partial(upward, level), children, parents)

    def _down(
        self, name: str, level: Level, children: Float32[Array, "children H"], parents: Float32[Array, "parents H"]
    ) -> Float32[Array, "children H"]:
        return MessagePassing(self.width, name=name)(functools.partial(downward, level), parents, children)


class FlatEncoder(nn.Module):
    """Embeddings in the shapes of `Encoder`'s, by an MLP on all arrays of a scheduler as one vector.

    Its parameters' shapes depend on the sizes of the cluster. With `exchange_rounds` above 0 the vector holds the
    pooled views of all schedulers, the own one first.
    """

    width: int
    exchange_rounds: int

    @nn.compact
    def __call__(self, obs: Observation) -> tuple[Float32[Array, "*batch P NK H"], Float32[Array, "*batch P H"]]:
        *lead, p, n, k = obs.group_mask.shape
        schedulers = jnp.arange(p)
        in_rack = obs.server_rack[..., None] == jnp.arange(obs.rack.shape[-2])
        seen = [obs.group, obs.group_mask, obs.server, in_rack, obs.rack, obs.scheduler, obs.job, obs.job_mask]
        if self.exchange_rounds > 0:
            seen.append(jnp.take(obs.scheduler, (schedulers[:, None] + schedulers) % p, -2))
        vector = jnp.concatenate([array.reshape(*lead, p, -1).astype(jnp.float32) for array in seen], -1)
        hidden = nn.relu(nn.Dense(self.width, name="first")(vector))
        scheduler = nn.relu(nn.Dense(self.width, name="second")(hidden))
        group = nn.relu(nn.Dense(n * k * self.width, name="groups")(scheduler))
        return group.reshape(*lead, p, n * k, self.width), scheduler


class SchedulerNetwork(nn.Module):
    """Observation and menu of one environment, or of several on leading axes, to `Heads`.

    The logits start from a prior, a soft `greedy-wait:sjf+spread`: prefer what it would choose and early jobs; act
    when some placement loses less than the wait for the next completion, or a job that is
    blocked here could start elsewhere; forward it to where most is free, if nothing good is on offer. Its few weights
    are trained with everything else; `prior=False` leaves it out. A scheduler acts whenever it can if its partition is
    idle or some job would be done before anything that runs, so that nothing waits for ever; with `may_wait=False` it
    always does.
    Who `looks_ahead` has menus that say what waiting would bring, and starts from `greedy-wait` as it is.
    `kind` is one of `KINDS`; the flat one has no hierarchy.
    """

    kind: str = "graph"
    width: int = 32
    exchange_rounds: int = 1
    hierarchy: bool = True
    prior: bool = True
    may_wait: bool = True
    looks_ahead: bool = False

    def setup(self) -> None:
        def wide(bias: bool = True) -> nn.Dense:
            return nn.Dense(self.width, use_bias=bias)

        def logit() -> nn.Dense:
            return nn.Dense(1, kernel_init=nn.initializers.variance_scaling(0.01, "fan_in", "normal"))

        if self.kind == "flat":
            self.encoder = FlatEncoder(self.width, self.exchange_rounds)
        else:
            self.encoder = Encoder(self.width, self.exchange_rounds, self.hierarchy)
        self.job, self.touch, self.offer = wide(), wide(bias=False), wide()
        self.of_job, self.here, self.weigh = wide(bias=False), wide(bias=False), wide()
        self.wait, self.source, self.target, self.critic = wide(), wide(), wide(), wide()
        self.place, self.act, self.forward = logit(), logit(), logit()
        self.value = nn.Dense(1)
        if self.prior:
            self.belief = self.param("belief", lambda _: jnp.array(AHEAD if self.looks_ahead else BELIEF, jnp.float32))

    def __call__(self, obs: Observation, menu: Menu) -> Heads:
        code = self.encode(obs)
        return self.decide(obs, menu, code, self.appraise(code, menu))

    def encode(self, obs: Observation) -> Embeddings:
        """One embedding of the cluster and the jobs, shared by all heads."""
        group, scheduler = self.encoder(obs)
        job = nn.relu(self.job(obs.job))
        window, blocked = job[..., :-1, :], job[..., -1, :]
        queue = (window * obs.job_mask[..., :-1, None]).mean(-2)
        context = jnp.concatenate([scheduler, queue, blocked * obs.job_mask[..., -1:]], -1)
        return Embeddings(group=group, scheduler=scheduler, window=window, context=context)

    def appraise(self, code: Embeddings, menu: Menu) -> Appraisal:
        """The placements on the menus of any number of schedulers, of one environment or of several."""
        counts = menu.workers.astype(jnp.float32)
        share = counts / jnp.maximum(counts.sum(-1, keepdims=True), 1.0)
        hidden = share @ self.touch(code.group) + self.offer(menu.features) + self.here(code.context)[..., None, :]
        hidden += jnp.take_along_axis(self.of_job(code.window), menu.rank[..., None], -2)
        hidden = nn.relu(self.weigh(nn.relu(hidden)))
        return Appraisal(place=self.place(hidden)[..., 0], best=jnp.where(menu.mask[..., None], hidden, 0.0).max(-2))

    def decide(self, obs: Observation, menu: Menu, code: Embeddings, appraisal: Appraisal) -> Heads:
        """All heads; `appraisal` is 0 for schedulers with an empty menu."""
        context, best, place = code.context, appraisal.best, appraisal.place
        seen = jnp.concatenate([context, best], -1)
        act = self.act(nn.relu(self.wait(seen)))[..., 0]
        to = self.target(code.scheduler)[..., None, :, :] + self.source(context)[..., None, :]
        forward = self.forward(nn.relu(to))[..., 0]

        if self.prior:
            per_order, per_rank, per_stake, steep, accept, eager, per_free, against = self.belief
            place -= per_order * menu.order + per_rank * menu.rank + per_stake * nn.relu(menu.log_stake)
            offered = menu.mask.any(-1)
            lowest = jnp.where(menu.mask, menu.log_stake, jnp.inf).min(-1)
            worth = jnp.where(offered, steep * (accept - jnp.where(offered, lowest, 0.0)), -jnp.inf)
            movable = obs.forward_mask.any(-1)
            act += jnp.where(offered | movable, jnp.maximum(worth, jnp.where(movable, eager, -jnp.inf)), 0.0)
            forward += per_free * obs.scheduler[..., None, :, 0] - against
        idle = obs.scheduler[..., 0] >= 1.0  # all GPUs free
        pressing = idle | (menu.brief & menu.mask).any(-1)
        act = jnp.where(pressing | (not self.may_wait), _CERTAIN, act)
        value = self.value(nn.relu(self.critic(seen)))[..., 0]
        return Heads(place=place, forward=forward, act=act, value=value)


def apply_alone(network: SchedulerNetwork, weights: PyTree, obs: Observation, menu: Menu, share: float) -> Heads:
    """`network` on one environment; `obs`, `menu` and the heads have the leading axis P.

    Under `vmap` on an accelerator only what menus hold is appraised, a `share` of all their parts at a time.
    """
    if on_cpu():
        return _apply(network, "__call__", weights, obs, menu)
    obs, menu = jax.tree.map(lambda leaf: leaf[None], (obs, menu))
    code: Embeddings = _apply(network, "encode", weights, obs)
    parts = jax.tree.map(lambda leaf: leaf.reshape(menu.mask.shape[1], -1, *leaf.shape[1:]), _parts(menu))
    some = parts.mask.any(-1)

    def of_part(part: tuple[Embeddings, Menu], _: Array, which: Array) -> Appraisal:
        code, menu = part
        return _appraise(network, weights, code, jax.tree.map(lambda leaf: leaf[which], menu))

    own = jax.tree.map(lambda leaf: leaf[0], code), parts
    blank = zeros_of(of_part, jax.tree.map(lambda leaf: leaf[0], own), jnp.int32(0), jnp.int32(0))
    appraisal = of_parts(own, some, of_part, everywhere(blank, some), share=share)
    return jax.tree.map(lambda leaf: leaf[0], _decide(network, weights, obs, menu, code, appraisal))


def apply_packed(
    network: SchedulerNetwork, weights: PyTree, obs: Observation, menu: Menu, share: float
) -> tuple[Heads, Bool[Array, "B P"]]:
    """`network` on a batch of environments, without appraising what is empty of their menus.

    Args: `obs`, `menu` with leading axes B, P. There is room for `share` of the parts of all B * P menus; those beyond
    it are not appraised.
    Returns: heads with leading axes B, P, and which of them are whole.
    """
    code: Embeddings = _apply(network, "encode", weights, obs)
    parts = _parts(menu)
    some = parts.mask.any(-1)
    chosen = _those(some, math.ceil(some.size * share))
    new = _block_by_block(
        functools.partial(_appraise, network, weights), chosen < some.size, _rows(code, parts, chosen)
    )
    heads = _decide(network, weights, obs, menu, code, _put(_unappraised(network, weights, code, parts), chosen, new))
    done = jnp.zeros(some.size, bool).at[chosen].set(True, mode="drop") | ~some
    return heads, done.reshape(*menu.mask.shape[:2], -1).all(-1)


def apply_in_blocks(
    network: SchedulerNetwork, weights: PyTree, obs: Observation, menu: Menu, share: float = APPRAISED
) -> Heads:
    """`network` on a batch of environments, appraising `share` of all parts of menus until only empty ones are left.

    It has no gradient, since how many times is known only then. Args: `obs`, `menu` with leading axes B, P.
    """
    code: Embeddings = _apply(network, "encode", weights, obs)
    parts = _parts(menu)
    some = parts.mask.any(-1)
    size = math.ceil(some.size * share)
    chosen = _those(some, -(-some.size // size) * size)

    def block(carry: tuple[Array, Appraisal]) -> tuple[Array, Appraisal]:
        start, appraisal = carry
        here = lax.dynamic_slice(chosen, (start,), (size,))
        new = _appraise(network, weights, *_rows(code, parts, here))
        return start + size, _put(appraisal, here, new)

    first = (jnp.int32(0), _unappraised(network, weights, code, parts))
    _, appraisal = lax.while_loop(lambda carry: carry[0] < some.sum(), block, first)
    return _decide(network, weights, obs, menu, code, appraisal)


def _apply(network: SchedulerNetwork, method: str, weights: PyTree, *inputs: Any) -> Any:
    """One part of the network; flax cannot know the type of what it returns."""
    return network.apply(weights, *inputs, method=method)


def _parts(menu: Menu) -> Menu:
    """Menus with leading axes B, P as parts of `PART` options in a row. Most menus fill only the first of theirs."""
    options = menu.mask.shape[2]
    size = options if options % PART else PART
    return jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[3:]), menu)


def _those(some: Bool[Array, "S"], size: int) -> Int32[Array, "size"]:
    """The first indices where `some`, then ones beyond the end, read as the last and written nowhere."""
    return jnp.nonzero(some, size=size, fill_value=some.size)[0]


def _rows(code: Embeddings, parts: Menu, chosen: Int32[Array, "size"]) -> tuple[Embeddings, Menu]:
    """The `chosen` parts, and the embeddings, with leading axes B, P, of the schedulers whose they are."""
    schedulers = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), code)
    per_menu = parts.mask.shape[0] // schedulers.scheduler.shape[0]
    whose = jax.tree.map(lambda leaf: leaf[chosen // per_menu], schedulers)
    return whose, jax.tree.map(lambda leaf: leaf[chosen], parts)


def _block_by_block(
    appraise: Callable[[Embeddings, Menu], Appraisal], real: Bool[Array, "size"], rows: tuple[Embeddings, Menu]
) -> Appraisal:
    """`appraise(*rows)`. A CPU does it with `BLOCK` of them at a time, which fit its cache, unless none is `real`.

    For gradients it does so again: that is faster than to keep what was worked out.
    """
    if not on_cpu():
        return appraise(*rows)
    count, size = real.shape[0], min(BLOCK, real.shape[0])

    def blocks(leaf: Array) -> Array:
        padded = jnp.pad(leaf, [(0, -count % size)] + [(0, 0)] * (leaf.ndim - 1))
        return padded.reshape(-1, size, *leaf.shape[1:])

    @jax.checkpoint
    def one(block: tuple[Array, tuple[Embeddings, Menu]]) -> Appraisal:
        real, rows = block
        return lax.cond(real.any(), appraise, lambda *rows: zeros_of(appraise, *rows), *rows)

    made = lax.map(one, jax.tree.map(blocks, (real, rows)))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], made)


def _appraise(network: SchedulerNetwork, weights: PyTree, code: Embeddings, parts: Menu) -> Appraisal:
    return _apply(network, "appraise", weights, code, parts)


def _unappraised(network: SchedulerNetwork, weights: PyTree, code: Embeddings, parts: Menu) -> Appraisal:
    rows = _rows(code, parts, jnp.arange(parts.mask.shape[0]))
    return zeros_of(functools.partial(_appraise, network, weights), *rows)


def _put(all_of_them: Appraisal, chosen: Int32[Array, "size"], some: Appraisal) -> Appraisal:
    return jax.tree.map(lambda full, part: full.at[chosen].set(part, mode="drop"), all_of_them, some)


def _decide(
    network: SchedulerNetwork, weights: PyTree, obs: Observation, menu: Menu, code: Embeddings, parts: Appraisal
) -> Heads:
    """All heads, from the appraisal of the menus' parts."""
    best = parts.best.reshape(*code.scheduler.shape[:2], -1, parts.best.shape[-1]).max(-2)
    appraisal = Appraisal(place=parts.place.reshape(menu.mask.shape), best=best)
    return _apply(network, "decide", weights, obs, menu, code, appraisal)
