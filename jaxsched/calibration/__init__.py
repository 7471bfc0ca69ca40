"""Laws fitted to measurements: interference between jobs, and step time by placement.

What both need lies here: tables of measurements, the descent, folds and errors, folders of fitted models. What is left
to `interference` and `step_time` is their law.
"""
