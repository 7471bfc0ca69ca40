"""Laws fitted to measurements: interference between jobs, and step time by placement.

What both need lies here: tables of measurements, the descent, folds and errors, folders of fitted models. `interference`
and `step_time` hold their laws.
"""
