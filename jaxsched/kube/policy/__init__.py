"""Who decides: a rule or a checkpoint, shown a live cluster as the simulator's state, and the fallback."""
