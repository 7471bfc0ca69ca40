"""Hierarchical graph network: the only room that knows jraph."""
