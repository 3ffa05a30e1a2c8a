"""`--weights-as stored`: the plan counts the bytes that the file will have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nextn.compile.cli import main
from nextn.graphs.model import derived_constants
from nextn.weights import Checkpoint, pack_weights, packed_weights
from tests.oracles import published_layouts as layouts
from tests.oracles.synthetic import CASES, random_weights

PLAN = ("--device", "npu", "--emit", "air", "--dry-run", "--json")


def planned_bytes(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> int:
    assert main([str(folder), *PLAN, *options]) == 0
    return int(json.loads(capsys.readouterr().out)["weight_bytes"])


def test_bytes_of_the_plan_are_those_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CASES["window_only"].config
    folder = tmp_path / "w8a8"
    layouts.write_layout(folder, "modelslim", config, random_weights(config, seed=2))
    checkpoint = Checkpoint.open(folder)
    packed = packed_weights(checkpoint.config, True)
    constants = derived_constants(checkpoint.config)
    sizes = {}
    for name, keep in (("stored", ("int8_row",)), ("bfloat16", ())):
        entries = pack_weights(checkpoint, packed, torch.bfloat16, tmp_path / name, constants, keep=keep)
        sizes[name] = sum(int(str(entry["nbytes"])) for entry in entries)
        assert planned_bytes(folder, capsys, "--weights-as", name) == sizes[name]
    assert sizes["stored"] < sizes["bfloat16"]
