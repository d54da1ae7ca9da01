"""What a facade does not have: one sentence, and what to do instead."""

from __future__ import annotations

from typing import NoReturn

from .._core import Error


class NotThereYet(Error, NotImplementedError):
    """A call of deep_ep that EPForge does not have."""


def absent(name: str, instead: str) -> NoReturn:
    """Raises for the call `name`."""
    raise NotThereYet(f"`{name}` is not there yet: {instead}")


OTHER_KIND = "EPForge has dispatch and combine, and no pipelines of this kind"
