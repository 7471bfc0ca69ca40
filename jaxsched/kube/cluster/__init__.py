"""The cluster around the planning: API client, watches, binding, leader election, events, metrics, recordings."""
