"""Errors meant for the person at the keyboard."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend. Its text is one sentence: what, where, how to mend it.

    The command line prints the text alone, without a traceback, and exits with ``exit_code``.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
