"""Which controller a command speaks to: named on the command line, by the environment, or by a cluster's home."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gangflow.home import Home, default_home, given_token

VARIABLES = (("GANGFLOW_URL", "GANGFLOW_TOKEN"), ("XCE_URL", "XCE_TOKEN"))
"""In this order; the second pair is what a member of a group finds in its environment."""


def find(url: str, token: str, home: Path | None, environment: Mapping[str, str] | None = None) -> tuple[str, str]:
    """(URL, token) of the controller. A token that is given, here or by the environment, wins over a home's own.

    Raises:
        Unreachable: nothing names one, and none has started in the home.
    """
    given = os.environ if environment is None else environment
    if url:
        return url, token or given_token(given)
    if home is None:
        for address, secret in VARIABLES:
            if given.get(address):
                return given[address], token or given.get(secret) or given_token(given)
    place = Home(home.expanduser().resolve()) if home is not None else default_home()
    return place.url, token or given_token(given) or place.token
