"""How a command ends when it cannot do what was asked: one line on stderr, no traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from segue.cluster.errors import SegueError

USER_ERROR_EXIT = 2


@contextmanager
def told_to_the_user() -> Iterator[None]:
    """Turn an error raised on purpose into a message and exit code 2; others pass through."""
    try:
        yield
    except SegueError as error:
        print(f"segue: {error.message}", file=sys.stderr)
        raise SystemExit(USER_ERROR_EXIT) from error
