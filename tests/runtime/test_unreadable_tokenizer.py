"""An artifact that carries a `tokenizer.json` as it was in the checkpoint, which no library reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import nextn
from nextn.runtime.contract.errors import RequestError
from tests.runtime.conftest import CommandResult

NextnRun = Callable[..., CommandResult]


@pytest.fixture
def unreadable(artifact: Callable[..., Path]) -> Path:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7847602\n"
    return artifact(tokenizer=pointer)


def test_token_ids_run_without_text(unreadable: Path) -> None:
    """https://github.com/mlc-ai/mlc-llm/issues/1954: token ids need no tokenizer."""
    with nextn.load(unreadable) as engine:
        (completion,) = engine.generate([1, 2], max_new_tokens=3)
        assert (completion.text, completion.token_ids) == (None, (1, 2, 1))
        for text in ({"prompt": "a"}, {"token_ids": [1], "stop": "a"}):
            with pytest.raises(RequestError, match="not a tokenizer.*tokenizer.json"):
                engine.generate(text)


def test_only_text_requests_are_refused(unreadable: Path, tmp_path: Path, nextn_run: NextnRun) -> None:
    assert nextn_run(unreadable, "--token-ids", "1,2", "--max-new-tokens", "3").code == 0
    refused = nextn_run(unreadable, "--prompt", "a", "--json")
    assert refused.code == 4
    [failure] = [line["error"] for line in refused.objects if "error" in line]
    assert failure["code"] == 4 and str(unreadable / "tokenizer.json") in failure["message"]
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"prompt": "a"}\n{"token_ids": [1, 2], "max_new_tokens": 3}\n{"token_ids": []}\n')
    mixed = nextn_run(unreadable, "--requests", requests, "--json")
    assert mixed.code == 4
    codes = {line["id"]: line.get("error", {}).get("code") for line in mixed.objects if "id" in line}
    assert codes == {1: 4, 2: None, 3: 2}, json.dumps(mixed.objects)
