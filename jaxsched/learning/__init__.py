"""PPO over vmapped environments, in chunks that can be killed and resumed; and evolution of a few numbers."""
