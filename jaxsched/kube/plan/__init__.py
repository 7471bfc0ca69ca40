"""From a snapshot to a plan: which gangs start where, why the others wait. Pure."""
