"""Levels learned from a workload's own past: evolution strategies over a table, in the compiled event loop."""
