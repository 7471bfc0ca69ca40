"""Which networks there are; names that a configuration is checked against without importing them."""

KINDS = ("graph", "flat")  # the hierarchical graph network, and a plain one to compare with
