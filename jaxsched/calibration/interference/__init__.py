"""Interference learned from measurements: readers, the model, its fit, references, validation and files.

What the simulator calls lies below, in `dynamics.sharing` and `dynamics.interference`.
"""
