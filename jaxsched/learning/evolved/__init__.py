"""Policies of a few numbers, learned from a workload: evolution strategies in the compiled event loop."""
