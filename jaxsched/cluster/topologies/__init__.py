"""Families of data-center networks beyond trees: one file each, and the registry of all."""
