"""What only some worlds have: parts of the state, and what happens to them when jobs start, stop or end."""
