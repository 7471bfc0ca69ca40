"""Interference learned from measurements: the model, its fit, references, validation and names.

What the simulator calls lies below, in `dynamics.sharing` and `dynamics.interference`.
"""
