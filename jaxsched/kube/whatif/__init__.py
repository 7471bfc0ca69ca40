"""Futures of a cluster in the simulator: when gangs would start, and recorded days under other policies. Pure."""
