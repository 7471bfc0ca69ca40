"""Workload: the model catalogue, jobs, arrivals, traces and data sets. Knows nothing of clusters."""
