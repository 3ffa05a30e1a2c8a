"""Clients send null for what they leave open."""

from __future__ import annotations

import pytest

from nextn.runtime.contract.errors import RequestError
from nextn.runtime.engine.requests import DEFAULTS, RequestReader

READER = RequestReader(
    vocab_size=300, max_seq_len=64, tokenizer=None, defaults={"max_new_tokens": 5, "seed": 3}
)


@pytest.mark.parametrize("field", [*DEFAULTS, "id"])
def test_null_is_the_default(field: str) -> None:
    """OpenAI's clients write `"stop": null, "seed": null, "temperature": null`."""
    plain = READER.read({"token_ids": [1]}, default_id=9)
    assert READER.read({"token_ids": [1], field: None}, default_id=9) == plain


def test_a_prompt_of_null_is_none() -> None:
    with pytest.raises(RequestError, match="prompt"):
        READER.read({"prompt": None}, default_id=9)


def test_a_null_prompt_beside_another_is_no_prompt() -> None:
    assert READER.read({"prompt": None, "token_ids": [1]}, default_id=9).prompt == (1,)
