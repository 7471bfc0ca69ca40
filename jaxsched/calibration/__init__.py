"""Laws fitted to measurements: interference between jobs, and step time by placement."""
