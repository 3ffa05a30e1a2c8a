"""Loaded cases and plain runs shared by the tests of whole rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.oracles.case_oracle import make_oracle
from tests.rounds.product import Product
from tests.rounds.script import Script


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    # Matrices this small only lose time to a second thread.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def product_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Product]:
    """Named cases, each written and loaded once."""
    made: dict[str, Product] = {}

    def get(name: str) -> Product:
        if name not in made:
            made[name] = Product.load(make_oracle(tmp_path_factory.mktemp(name), name))
        return made[name]

    return get


@pytest.fixture(scope="session")
def script_of(product_of: Callable[[str], Product]) -> Callable[[str], Script]:
    """The script of each case, run once."""
    made: dict[str, Script] = {}

    def get(name: str) -> Script:
        if name not in made:
            with torch.no_grad():
                made[name] = Script(product_of(name))
        return made[name]

    return get
