"""Snapshot -> plan: pure, without network, files or the Kubernetes client; the one thread is the policy's time-out."""
