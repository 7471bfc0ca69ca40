"""How a placement sets the step time: the communication model fitted to measured placements."""
