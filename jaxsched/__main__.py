"""`python -m jaxsched`, the same as `jaxsched`."""

from jaxsched.cli.__main__ import run

if __name__ == "__main__":
    run()
