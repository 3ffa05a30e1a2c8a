"""A new target is a module and a line in the registry: command, builder and workers stay as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal
from unittest import mock

import pytest

from nextn.compile.cli import main
from nextn.compile.cli.command import compile_command
from nextn.compile.targets.registry import TARGETS
from nextn.runtime.contract import manifest, manifest_checks
from nextn.runtime.contract.errors import ExitCode
from tests.compile.targets.text_target import WORKER, TextTarget
from tests.oracles.synthetic import CASES

OPTIONS = ("--max-seq-len", "12", "--prefill-chunk", "4", "--speculative-num-steps", "0")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "text", TextTarget)
    # What an artifact may hold is a list of the contract: something has to run it.
    monkeypatch.setattr(manifest, "Emit", Literal["aoti", "text"])
    monkeypatch.setitem(manifest_checks.EMITS, "cpu", ("aoti", "text"))
    monkeypatch.setattr(manifest_checks, "REQUIREMENTS", ("a reader",))


def compiled(checkpoint: Path, output: Path, *options: str) -> int:
    """With workers as processes that know the target."""
    with (
        mock.patch.object(compile_command, "__defaults__", (WORKER,)),
        mock.patch("nextn.compile.build.golden.NEW_TOKENS", 2),
    ):
        return main([str(checkpoint), "-o", str(output), "--emit", "text", *OPTIONS, *options])


def test_its_graphs_are_compiled(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = tmp_path / "artifact"
    assert compiled(checkpoint, artifact, "--text-margin", "3") == ExitCode.OK
    written = json.loads((artifact / "manifest.json").read_text())
    assert (written["target"]["device"], written["target"]["emit"]) == ("cpu", "text")
    assert written["producer"]["compiler"] == "pen"
    assert (written["ops"]["write_rows"], written["ops"]["linear"]) == ("a line", "by hand")
    assert written["ops"]["sinkhorn"] == "plain"
    files = [graph["file"] for graph in written["graphs"]]
    assert files == ["graphs/prefill.b1.txt", "graphs/decode.b1.txt"]
    assert (artifact / "contents.txt").read_text().split("\n") == files
    layers = CASES["window_only"].config["num_hidden_layers"]
    for file in files:
        head, *lines = (artifact / file).read_text().splitlines()
        assert head == f"{Path(file).stem} in blue beside []", "a worker imports one compiler, its target's"
        assert all(line.startswith("   ") and line[3] != " " for line in lines)
        # One a layer of the Target: without drafts there is no other.
        assert lines.count("   nextn.nextn_window_attention.default") == layers

    capsys.readouterr()
    assert compiled(checkpoint, artifact, "--text-margin", "3") == ExitCode.USAGE
    assert "not an artifact" in capsys.readouterr().err, "contents.txt is of no entry the target has declared"
    with mock.patch.object(TextTarget, "own_entries", frozenset({"contents.txt"})):
        assert compiled(checkpoint, artifact, "--text-margin", "3") == ExitCode.OK
    assert "is up to date" in capsys.readouterr().out


def test_its_flag_is_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--dry-run", "--text-margin", "1"]) == ExitCode.USAGE
    assert "--text-margin indents text (found aoti)" in capsys.readouterr().err
