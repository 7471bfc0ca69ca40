"""The one exception that stands for a user's mistake."""


class UserError(Exception):
    """A mistake in what the user handed in: the message says what is wrong, where, and what would be right.

    The command line prints it as one line and exits with code 2.
    """


class DoubtfulFile(UserWarning):
    """A file that can be read, and may not be what the user means. The command line prints it as one line."""
