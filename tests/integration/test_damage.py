"""A damaged or foreign artifact is refused before any of its code is loaded."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nextn.runtime.bindings.model import Model
from nextn.runtime.contract.errors import ArtifactError, ExitCode
from tests.artifact_builder import read_json, write_json
from tests.commands import NEXTN_RUN


@pytest.fixture
def copy(speculative: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(speculative, tmp_path / "artifact"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def rewrite_manifest(artifact: Path, change: Callable[[dict], None]) -> None:
    """A manifest with another content and a correct hash of it."""
    content = read_json(artifact)
    change(content)
    write_json(artifact, content)


def test_flipped_byte_in_a_graph(copy: Path) -> None:
    flip(copy / "graphs" / "round.b1.so", 4096)
    with pytest.raises(ArtifactError, match="round.b1.so"):
        Model(copy)


def test_flipped_byte_in_the_weights_header(copy: Path) -> None:
    flip(copy / "weights.safetensors", 64)
    with pytest.raises(ArtifactError, match="weights.safetensors"):
        Model(copy)


def test_flipped_byte_in_the_weights_body(copy: Path) -> None:
    """Not looked at when opening, found when asked for."""
    flip(copy / "weights.safetensors", -1)
    Model(copy).close()
    with pytest.raises(ArtifactError, match="weights.safetensors"):
        Model(copy, verify_weights=True)


def test_flipped_byte_in_the_manifest(copy: Path) -> None:
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace('"num_steps": 3', '"num_steps": 2'))
    with pytest.raises(ArtifactError, match="manifest"):
        Model(copy)


def test_other_torch_version(copy: Path) -> None:
    rewrite_manifest(copy, lambda content: content["producer"].update(torch="2.12.0"))
    with pytest.raises(ArtifactError, match=r"2\.12\.0"):
        Model(copy)


def test_wider_instruction_set(copy: Path) -> None:
    """https://github.com/pytorch/pytorch/issues/121516: such a library dies of an illegal instruction."""
    rewrite_manifest(copy, lambda content: content["target"]["isa"].append("amx-tile-of-the-future"))
    with pytest.raises(ArtifactError, match="amx-tile-of-the-future"):
        Model(copy)


def test_exit_code_and_single_line(copy: Path) -> None:
    flip(copy / "graphs" / "round.b1.so", 4096)
    command = [NEXTN_RUN, str(copy), "--token-ids", "1,2,3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == ExitCode.ARTIFACT
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
