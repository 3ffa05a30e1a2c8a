"""Checkpoint folders shared by the tests of this package."""

from pathlib import Path

import pytest
import torch

from tests.weights.folders import tiny_config, tiny_tensors, without_nextn, write_folder


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint under original names, with NextN."""
    return write_folder(tmp_path_factory.mktemp("original"), tiny_config(), tiny_tensors())


@pytest.fixture(scope="session")
def hugging_face_saves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny Target as transformers itself saves it, in both of its forms; it drops NextN."""
    transformers = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("hugging_face")
    source = write_folder(root / "source", tiny_config(), without_nextn(tiny_tensors()))
    model, report = transformers.DeepseekV4ForCausalLM.from_pretrained(
        source, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    model.save_pretrained(root / "default")
    model.save_pretrained(root / "native", save_original_format=False)
    return {"default": root / "default", "native": root / "native"}
