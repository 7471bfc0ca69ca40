"""What happens to placed jobs: traffic, contention, interference and speed. Pure functions, one partition at a time."""
