"""Plans of jobs: tables, what their ranks send, and racks for them."""
