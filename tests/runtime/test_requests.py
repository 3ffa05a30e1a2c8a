"""Requests: every bad value is refused in one line that names field, expected and found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nextn.runtime.contract.errors import RequestError
from nextn.runtime.engine.requests import Request, RequestReader, parse_line
from nextn.runtime.engine.text import Tokenizer
from tests.runtime.echo_artifact import byte_level_tokenizer

VOCAB_SIZE = 258
MAX_SEQ_LEN = 10


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return Tokenizer(tmp_path / "tokenizer.json")


@pytest.fixture
def reader(tokenizer: Tokenizer) -> RequestReader:
    defaults = {"max_new_tokens": 5, "stop": ("x",)}
    return RequestReader(
        vocab_size=VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN, tokenizer=tokenizer, defaults=defaults
    )


def test_defaults_fill_what_a_request_leaves_out(reader: RequestReader) -> None:
    assert reader.read({"prompt": "hi"}, default_id=7) == Request(7, (104, 105), 5, 0.0, 0, ("x",), False)


def test_a_request_overrides_defaults(reader: RequestReader) -> None:
    fields = {
        "id": "mine",
        "token_ids": [1, 257],
        "max_new_tokens": 1,
        "temperature": 1,
        "seed": 3,
        "stop": "y",
        "ignore_eos": True,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "logprobs": 0,
    }
    assert reader.read(fields, default_id=7) == Request("mine", (1, 257), 1, 1.0, 3, ("y",), True)


@pytest.mark.parametrize(
    "token", [-1, VOCAB_SIZE, VOCAB_SIZE + 1, 2**31 - 1, 2**31, 2**64 + 1, 1.0, True, "1", None]
)
def test_ids_that_are_no_tokens_are_refused(reader: RequestReader, token: object) -> None:
    """Ids -1 and n_vocab reach the embedding (https://github.com/vllm-project/vllm-ascend/issues/10305)."""
    with pytest.raises(RequestError) as caught:
        reader.read({"token_ids": [5, token]}, default_id=1)
    assert caught.value.key == "token_ids[1]"
    assert caught.value.expected == "an integer in 0..257"
    assert caught.value.found == json.dumps(token)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", True),
        ("max_new_tokens", 2**63),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 2048),
        ("temperature", 10**400),
        ("temperature", "0"),
        ("temperature", False),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 0.0),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [1]),
        ("ignore_eos", 1),
        ("top_k", 5),
        ("top_k", False),
        ("top_p", 0.9),
        ("min_p", 0.1),
        ("logprobs", 2),
        ("id", True),
        ("id", 1.5),
        ("token_ids", "1,2"),
        ("token_ids", 3),
        ("token_ids", []),
        ("token_ids", [1] * MAX_SEQ_LEN),
        ("prompt", ""),
        ("prompt", 5),
        ("prompt", "x" * MAX_SEQ_LEN),
        ("prompt", "\ud800"),
        ("messages", [{"role": "user", "content": "hi"}]),
        ("max_tokens", 5),
    ],
)
def test_bad_values_are_refused_by_name(reader: RequestReader, field: str, value: Any) -> None:
    prompt = {} if field in ("token_ids", "prompt", "messages") else {"token_ids": [1]}
    with pytest.raises(RequestError) as caught:
        reader.read({**prompt, field: value}, default_id=1)
    assert caught.value.key == field
    assert "\n" not in str(caught.value)


def test_lengths_name_the_limit(reader: RequestReader) -> None:
    with pytest.raises(RequestError, match=r"key token_ids, expected 1..9 tokens, found 10 tokens"):
        reader.read({"token_ids": [1] * MAX_SEQ_LEN}, default_id=1)
    assert len(reader.read({"token_ids": [1] * (MAX_SEQ_LEN - 1)}, default_id=1).prompt) == MAX_SEQ_LEN - 1


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "token_ids": [1]}])
def test_a_request_has_exactly_one_prompt(reader: RequestReader, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="exactly one of prompt, token_ids"):
        reader.read(fields, default_id=1)


def test_tokens_that_the_model_lacks_are_refused(tokenizer: Tokenizer) -> None:
    reader = RequestReader(vocab_size=64, max_seq_len=10, tokenizer=tokenizer)
    with pytest.raises(RequestError, match="tokenizer and model disagree"):
        reader.read({"prompt": "z"}, default_id=1)


def test_text_needs_a_tokenizer() -> None:
    reader = RequestReader(vocab_size=64, max_seq_len=10, tokenizer=None)
    assert reader.read({"token_ids": [1]}, default_id=1).prompt == (1,)
    with pytest.raises(RequestError, match="no tokenizer"):
        reader.read({"prompt": "z"}, default_id=1)
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        reader.read({"token_ids": [1], "stop": "z"}, default_id=1)


def test_a_bad_default_is_refused_at_once() -> None:
    with pytest.raises(RequestError, match="key seed"):
        RequestReader(vocab_size=64, max_seq_len=10, tokenizer=None, defaults={"seed": -1})


@pytest.mark.parametrize(
    "line", [b'{"seed": 1, "seed": 2}', b'{"prompt": "a", "x": [{"seed": 1, "seed": 1}]}']
)
def test_a_key_given_twice_is_named(line: bytes) -> None:
    with pytest.raises(RequestError, match="a repeated key .key seed."):
        parse_line(line)


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"seed": ' + b"9" * 5000 + b"}"]
)
def test_lines_that_are_no_objects_are_refused(line: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_line(line)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_unknown_default_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown setting .key max_tokens"):
        RequestReader(vocab_size=64, max_seq_len=10, tokenizer=None, defaults={"max_tokens": 1})


def test_the_demos_prompts_are_a_requests_file() -> None:
    """Its acceptance figures hold for prompts of the start token and 255 bytes."""
    folder = Path(__file__).parents[2] / "nextn" / "weights" / "demo"
    reader = RequestReader(vocab_size=260, max_seq_len=2048, tokenizer=Tokenizer(folder / "tokenizer.json"))
    lines = (folder / "prompts.jsonl").read_bytes().splitlines()
    requests = [reader.read(parse_line(line), default_id=0) for line in lines]
    assert len({request.id for request in requests}) == len(requests) == 50
    for request, line in zip(requests, lines, strict=True):
        assert request.prompt == (257, *parse_line(line)["prompt"].encode())
        assert len(request.prompt) == 256
