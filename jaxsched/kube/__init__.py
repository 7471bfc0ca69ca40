"""A policy schedules a Kubernetes cluster: a pure core (snapshot -> plan) and the adapter that watches and binds."""
