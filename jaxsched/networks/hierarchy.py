"""The hierarchical graph network: one encoding of the cluster, light heads for jobs, placements, forwards and waiting.

Parameters are shared by all schedulers. Sizes of the cluster never enter a parameter's shape, but in the flat encoder,
which is there to compare with.
"""

import chex
import flax.linen as nn
import jax.numpy as jnp
import jraph
from jax import Array

from jaxsched.env.observation import Observation
from jaxsched.networks.graphs import Level, containment, downward, exchange, upward

KINDS = ("graph", "flat")
_CERTAIN = 1e9  # a logit; finite, so that what is multiplied by its probability of 0 stays a number


@chex.dataclass(frozen=True)
class Menu:
    """Placements on offer for each job of the window; leading axis P. `C` candidates."""

    workers: Array  # int8[P, W, C, NK], workers per group
    features: Array  # float32[P, W, C, Fc], what the placement would do, see `policies.menu`
    log_effective: Array  # float32[P, W, C], log of the effective slowdown, as greedy-wait computes it
    log_stake: Array  # float32[P, W, C], log of the seconds lost over those until the next completion, within +-4
    brief: Array  # bool[P, W, C], the job would be done before the next completion
    mask: Array  # bool[P, W, C]


@chex.dataclass(frozen=True)
class Heads:
    """What the network says; leading axis P."""

    place: Array  # float32[P, W, C], logits of placements
    forward: Array  # float32[P, P], logits of forwarding the blocked job
    act: Array  # float32[P], logit of acting at all rather than waiting
    value: Array  # float32[P]


class Pass(nn.Module):
    """One round of messages on a weighted graph: a jraph GraphNetwork with a residual node update."""

    width: int

    @nn.compact
    def __call__(self, graph: jraph.GraphsTuple) -> Array:
        signals = nn.relu(nn.Dense(self.width, name="message")(graph.nodes))
        listen = jraph.GraphNetwork(
            update_edge_fn=lambda weight, sent, received, globals_: jnp.concatenate([weight * sent, weight], -1),
            update_node_fn=lambda nodes, sent, received, globals_: received,
            aggregate_edges_for_nodes_fn=_mean,
        )
        heard = listen(graph._replace(nodes=signals)).nodes
        own = nn.Dense(self.width, name="own")(graph.nodes)
        return graph.nodes + nn.relu(own + nn.Dense(self.width, use_bias=False, name="heard")(heard))


def _mean(weighted: Array, receivers: Array, nodes: int) -> Array:
    """Sum of the messages over the square root of their number: sees load, and stays in range as a level grows.

    The last column holds the weights themselves: padding has weight 0 and does not count.
    """
    total = jraph.segment_sum(weighted, receivers, nodes)
    return total[:, :-1] / jnp.sqrt(jnp.maximum(total[:, -1:], 1.0))


class Encoder(nn.Module):
    """Embeddings of groups `[P, NK, H]` and schedulers `[P, H]`: up the hierarchy, across schedulers, down again."""

    width: int
    exchange_rounds: int
    hierarchy: bool

    @nn.compact
    def __call__(self, obs: Observation) -> tuple[Array, Array]:
        def embed(name: str, features: Array) -> Array:
            return nn.relu(nn.Dense(self.width, name=name)(features.reshape(-1, features.shape[-1])))

        group, server = embed("group", obs.group), embed("server", obs.server)
        rack, scheduler = embed("rack", obs.rack), embed("scheduler", obs.scheduler)
        low, middle, high = containment(obs)
        if self.hierarchy:
            server = self._up("group_to_server", low, group, server)
            rack = self._up("server_to_rack", middle, server, rack)
            scheduler = self._up("rack_to_scheduler", high, rack, scheduler)
        for i in range(self.exchange_rounds):
            scheduler = Pass(self.width, name=f"exchange_{i}")(exchange(scheduler, obs.group_mask.any((1, 2))))
        if self.hierarchy:
            rack = self._down("scheduler_to_rack", high, rack, scheduler)
            server = self._down("rack_to_server", middle, server, rack)
            group = self._down("server_to_group", low, group, server)
        return group.reshape(obs.group_mask.shape[0], -1, self.width), scheduler

    def _up(self, name: str, level: Level, children: Array, parents: Array) -> Array:
        return Pass(self.width, name=name)(upward(level, children, parents))[children.shape[0] :]

    def _down(self, name: str, level: Level, children: Array, parents: Array) -> Array:
        return Pass(self.width, name=name)(downward(level, children, parents))[: children.shape[0]]


class FlatEncoder(nn.Module):
    """Embeddings in the shapes of `Encoder`'s, by an MLP on all arrays of a scheduler as one vector.

    Its parameters' shapes depend on the sizes of the cluster. With `exchange_rounds` above 0 the vector holds the
    pooled views of all schedulers, the own one first.
    """

    width: int
    exchange_rounds: int

    @nn.compact
    def __call__(self, obs: Observation) -> tuple[Array, Array]:
        p, n, k = obs.group_mask.shape
        schedulers = jnp.arange(p)
        in_rack = obs.server_rack[..., None] == jnp.arange(obs.rack.shape[1])
        seen = [obs.group, obs.group_mask, obs.server, in_rack, obs.rack, obs.scheduler, obs.job, obs.job_mask]
        if self.exchange_rounds > 0:
            seen.append(obs.scheduler[(schedulers[:, None] + schedulers) % p])
        vector = jnp.concatenate([array.reshape(p, -1).astype(jnp.float32) for array in seen], -1)
        hidden = nn.relu(nn.Dense(self.width, name="first")(vector))
        scheduler = nn.relu(nn.Dense(self.width, name="second")(hidden))
        group = nn.relu(nn.Dense(n * k * self.width, name="groups")(scheduler))
        return group.reshape(p, n * k, self.width), scheduler


class SchedulerNetwork(nn.Module):
    """Observation and menu of one environment to `Heads`.

    The placement and waiting logits start from a prior, a soft greedy-wait: prefer low effective slowdown and early
    jobs, act when some placement loses less than the wait for the next completion, or a job that is blocked here could
    start elsewhere. Its few weights are trained with
    everything else; `prior=False` leaves it out. A scheduler acts whenever it can if its partition is idle or some job
    would be done before anything that runs, so that nothing waits for ever; with `may_wait=False` it always does.
    `kind` is one of `KINDS`; the flat one has no hierarchy.
    """

    kind: str = "graph"
    width: int = 32
    exchange_rounds: int = 1
    hierarchy: bool = True
    prior: bool = True
    may_wait: bool = True

    @nn.compact
    def __call__(self, obs: Observation, menu: Menu) -> Heads:
        if self.kind == "flat":
            encoder = FlatEncoder(self.width, self.exchange_rounds, name="encoder")
        else:
            encoder = Encoder(self.width, self.exchange_rounds, self.hierarchy, name="encoder")
        group, scheduler = encoder(obs)
        job = nn.relu(nn.Dense(self.width, name="job")(obs.job))
        window, blocked = job[:, :-1], job[:, -1]
        context = jnp.concatenate(
            [scheduler, (window * obs.job_mask[:, :-1, None]).mean(1), blocked * obs.job_mask[:, -1:]], -1
        )

        counts = menu.workers.astype(jnp.float32)
        share = counts / jnp.maximum(counts.sum(-1, keepdims=True), 1.0)
        touched = jnp.einsum("pwca,pah->pwch", share, nn.Dense(self.width, use_bias=False, name="touch")(group))
        hidden = touched + nn.Dense(self.width, name="offer")(menu.features)
        hidden += nn.Dense(self.width, use_bias=False, name="of_job")(window)[:, :, None]
        hidden += nn.Dense(self.width, use_bias=False, name="here")(context)[:, None, None]
        hidden = nn.relu(nn.Dense(self.width, name="weigh")(nn.relu(hidden)))
        small = nn.initializers.variance_scaling(0.01, "fan_in", "normal")
        place = nn.Dense(1, kernel_init=small, name="place")(hidden)[..., 0]

        best = jnp.where(menu.mask[..., None], hidden, 0.0).max((1, 2))
        wait_hidden = nn.relu(nn.Dense(self.width, name="wait")(jnp.concatenate([context, best], -1)))
        act = nn.Dense(1, kernel_init=small, name="act")(wait_hidden)[..., 0]
        to = nn.Dense(self.width, name="to")(scheduler)[None] + nn.Dense(self.width, name="from")(context)[:, None]
        forward = nn.Dense(1, kernel_init=small, name="forward")(nn.relu(to))[..., 0]

        if self.prior:
            weights = self.param("prior", lambda _: jnp.array([4.0, 2.0, 4.0, 2.0, 0.0, 2.0, 2.0], jnp.float32))
            per_log, per_rank, per_stake, steep, accept, against, eager = weights
            rank = jnp.arange(place.shape[1], dtype=jnp.float32)[:, None]
            place += -per_log * menu.log_effective - per_rank * rank - per_stake * nn.relu(menu.log_stake)
            offered = menu.mask.any((1, 2))
            lowest = jnp.where(menu.mask, menu.log_stake, jnp.inf).min((1, 2))
            worth = jnp.where(offered, steep * (accept - jnp.where(offered, lowest, 0.0)), -jnp.inf)
            movable = obs.forward_mask.any(-1)
            act += jnp.where(offered | movable, jnp.maximum(worth, jnp.where(movable, eager, -jnp.inf)), 0.0)
            forward -= against
        idle = obs.scheduler[:, 0] >= 1.0  # all GPUs free
        pressing = idle | (menu.brief & menu.mask).any((1, 2))
        act = jnp.where(pressing | (not self.may_wait), _CERTAIN, act)
        critic = nn.relu(nn.Dense(self.width, name="critic")(jnp.concatenate([context, best], -1)))
        value = nn.Dense(1, name="value")(critic)[..., 0]
        return Heads(place=place, forward=forward, act=act, value=value)
