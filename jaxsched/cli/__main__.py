"""`python -m jaxsched.cli`."""

from jaxsched.cli.main import main

main()
