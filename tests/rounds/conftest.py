"""Plain runs shared by the tests of whole rounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.rounds.product import Product
from tests.rounds.script import Script


@pytest.fixture(scope="session")
def script_of(product_of: Callable[..., Product]) -> Callable[[str], Script]:
    """The script of each case, run once."""
    made: dict[str, Script] = {}

    def get(name: str) -> Script:
        if name not in made:
            made[name] = Script(product_of(name))
        return made[name]

    return get
