"""Which networks there are; what a configuration is checked against without importing them."""

KINDS = ("graph", "flat")  # the hierarchical graph network, and a plain one to compare with
MOST_WIDTH, MOST_EXCHANGES = 4096, 16  # what a file may ask for: beyond it compiling would not end
