"""TCP ports on the loopback interface."""

from __future__ import annotations

import contextlib
import random
import socket

import psutil

from samenode.errors import UserError

FIRST, LAST = 8000, 8999


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:``port`` now."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def listener(port: int) -> int | None:
    """The process id of who listens on ``port``; None if nobody does or it may not be known."""
    with contextlib.suppress(psutil.AccessDenied):
        for conn in psutil.net_connections("tcp"):
            if conn.laddr and conn.laddr.port == port and conn.status == psutil.CONN_LISTEN:
                return conn.pid
    return None


def owner(port: int) -> str:
    """Who listens on ``port``, in words: ``pid 12 (vllm serve …)``."""
    pid = listener(port)
    with contextlib.suppress(psutil.Error):
        if pid is not None:
            return f"pid {pid} ({' '.join(psutil.Process(pid).cmdline())[:80]})"
    return "a process of another user"


def choose(wanted: int | None) -> int:
    """``wanted`` if it is free, or any free port from 8000 to 8999 when none is wanted.

    Any, not the first: programs that look for a port look at 8000, and a server binds its own only
    seconds after this choice.

    Raises:
        UserError: the wanted port is taken (its owner is named), or all are.
    """
    if wanted is not None:
        if not is_free(wanted):
            raise UserError(
                f"port {wanted} is taken by {owner(wanted)}; stop it or give another PORT"
            )
        return wanted
    for port in random.sample(range(FIRST, LAST + 1), LAST + 1 - FIRST):
        if is_free(port):
            return port
    raise UserError(f"no free port between {FIRST} and {LAST}; give PORT=<number>")
