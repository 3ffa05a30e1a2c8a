"""Loaded cases for the tests of single modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.oracles.case_oracle import make_oracle
from tests.rounds.product import Product


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    # Matrices this small only lose time to a second thread.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def product_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Product]:
    """Named cases, each written in a dtype and loaded once."""
    made: dict[tuple[str, torch.dtype], Product] = {}

    def get(name: str, dtype: torch.dtype = torch.float32) -> Product:
        if (name, dtype) not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name, dtype] = Product.load(make_oracle(folder, name, dtype=dtype))
        return made[name, dtype]

    return get
