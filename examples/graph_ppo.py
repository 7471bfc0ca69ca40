"""PPO with a graph network: the learner of `ppo.py`, and the network of `graph_network.py`.

    python examples/graph_ppo.py 0 120 16       seed, updates and environments, as of ppo.py
"""

import graph_network
import jax
import ppo


class Network:
    """The network of one world, for one or for many."""

    of_one = graph_network.Network()

    def init(self, key, seen):
        """Weights, from what many worlds show."""
        return self.of_one.init(key, jax.tree.map(lambda leaf: leaf[0], seen))

    def apply(self, weights, seen):
        """See `graph_network.Network`."""
        apply = self.of_one.apply if seen["mask"].ndim == 2 else jax.vmap(self.of_one.apply, (None, 0))
        return apply(weights, seen)


if __name__ == "__main__":
    ppo.main("graph-ppo", Network(), axes=2, observation="graph")
