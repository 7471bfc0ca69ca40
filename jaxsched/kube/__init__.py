"""A policy schedules a Kubernetes cluster: objects are read, capacity is counted, a plan is made and bound."""
