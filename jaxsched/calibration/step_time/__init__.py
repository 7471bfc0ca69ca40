"""How a placement sets the step time: a law of communication, fitted to measured placements.

It stands alone: the simulator does not use it. There step times come from the profiles of `workload.models` and from
`dynamics.speed`. `jaxsched placement` fits it, measures its errors and validates it (docs/interference.md).
"""
