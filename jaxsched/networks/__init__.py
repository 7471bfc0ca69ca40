"""Hierarchical graph network: the only room that knows jraph.

Here is what a configuration is checked against without importing it.
"""

KINDS = ("graph", "flat")  # the hierarchical graph network, and a plain one to compare with
MOST_WIDTH, MOST_EXCHANGES = 4096, 16  # what a file may ask for: beyond it compiling would not end
