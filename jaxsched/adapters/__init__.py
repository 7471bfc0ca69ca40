"""The environment in the shapes that learning libraries expect."""
