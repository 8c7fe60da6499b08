"""Fields of a body that nobody knows: a likely misspelling is refused, the others are told back.

SDKs add fields of their own, so a name that resembles no known one is let through; the answer's
header X-Segue-Ignored-Fields lists it.
"""

import difflib
from collections.abc import Collection, Iterable
from itertools import islice

from segue.cluster.errors import InvalidRequest

IGNORED_HEADER = "X-Segue-Ignored-Fields"
_MAX_FIELDS = 16  # that are looked at, and listed: the work must not grow with a client's input
_MAX_NAME_CHARS = 40
_LIKENESS = 0.83  # of difflib: one letter missing, doubled, wrong or swapped


def refuse_misspelt(unknown: Iterable[str], known: Collection[str]) -> None:
    """Raises InvalidRequest for the first of the `unknown` names that resembles a known one."""
    plain = {_plain(name): name for name in known}
    for name in islice(unknown, _MAX_FIELDS):
        if len(name) > _MAX_NAME_CHARS:
            continue
        if near := difflib.get_close_matches(_plain(name), plain, n=1, cutoff=_LIKENESS):
            message = f"there is no field {name}; did you mean {plain[near[0]]}?"
            raise InvalidRequest(message, param=name)


def ignored_fields(unknown: Iterable[str]) -> str:
    """The names as a header may carry them; the first ones of many."""
    names = islice(unknown, _MAX_FIELDS)
    return ", ".join("".join(map(_harmless, name[:_MAX_NAME_CHARS])) for name in names)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _harmless(character: str) -> str:
    return character if "!" <= character <= "~" and character != "," else "?"
