"""Learning: PPO over vmapped environments, in chunks that can be killed and resumed."""
