from collections.abc import Callable

import pytest

from tests.oracles.case_oracle import CaseOracle, make_oracle


@pytest.fixture(scope="session")
def oracle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CaseOracle]:
    """Named cases, each written and loaded once."""
    made: dict[str, CaseOracle] = {}

    def get(name: str) -> CaseOracle:
        if name not in made:
            made[name] = make_oracle(tmp_path_factory.mktemp(name), name)
        return made[name]

    return get
