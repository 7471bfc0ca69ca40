"""Laws fitted to measurements: interference between jobs, and the step time by placement."""
