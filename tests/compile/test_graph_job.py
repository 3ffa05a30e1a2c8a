"""`GraphJob`: the JSON text that a worker is given holds every value of the shape."""

from __future__ import annotations

from pathlib import Path

from nextn.compile.build.worker import GraphJob
from nextn.compile.targets.aoti.instruction_set import InstructionSet
from nextn.graphs.session_shape import SessionShape
from nextn.weights.config_json import parse_model_config
from tests.oracles.synthetic import CASES


def test_a_job_returns_from_its_json_text(tmp_path: Path) -> None:
    config, _ = parse_model_config(CASES["tiny"].config, "config.json")
    shape = SessionShape(
        config,
        dtype="bfloat16",
        num_steps=2,
        batch_sizes=(1, 4),
        stored_layouts=(("head.weight", "int8_row"), ("layers.0.attn.wq_a.weight", "int8_row")),
        entry_rows_multiples=(16, 128),
    )
    job = GraphJob(
        name="round",
        batch=4,
        shape=shape,
        instruction_set=InstructionSet("x86-64-v3", 256, ("avx2", "fma")),
        output=tmp_path / "round.b4.so",
        emit="aoti",
        weights=tmp_path / "weights.safetensors",
        opset=None,
        custom_ops=("HcPre",),
    )
    again = GraphJob.from_json(job.to_json())
    assert again == job
    assert hash(again.shape) == hash(shape)
