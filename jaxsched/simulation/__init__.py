"""Runs: a cluster and jobs, settings, the engines that play them, and what became of every job."""
