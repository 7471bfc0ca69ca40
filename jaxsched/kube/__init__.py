"""A policy schedules a Kubernetes cluster: `planning` is pure (snapshot -> plan), `cluster` watches and binds."""
