"""The fixture that tests on the fake take; conftest files import it by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.cann.log import FakeCann, fake_cann


@pytest.fixture
def cann() -> Iterator[FakeCann]:
    """The fake with an empty log, not strict."""
    fake = fake_cann()
    with fake.strict(False):
        fake.clear()
        yield fake
