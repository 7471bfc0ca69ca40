"""PPO with a graph network: the learner of `ppo.py`, and the network of `graph_network.py`.

python examples/graph_ppo.py 0 120 16       seed, updates and environments, as of ppo.py
"""

import graph_network
import jax
import ppo


class Network:
    """The graph network chooses, in one world or in many; values are those of `ppo.Critic`, which learns on its own."""

    actor, critic = graph_network.Network(), ppo.Critic()

    def init(self, key, seen):
        """Weights, from what many worlds show."""
        one = jax.tree.map(lambda leaf: leaf[0], seen)
        return {"actor": self.actor.init(key, one), "critic": self.critic.init(key, one)}

    def apply(self, weights, seen):
        """See `ppo.Network`."""
        apply = self.actor.apply if seen["mask"].ndim == 2 else jax.vmap(self.actor.apply, (None, 0))
        return apply(weights["actor"], seen)[0], self.critic.apply(weights["critic"], seen)


if __name__ == "__main__":
    ppo.main("graph-ppo", Network(), axes=2, observation="graph")
