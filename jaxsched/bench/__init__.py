"""How fast the simulator and the learner are."""
