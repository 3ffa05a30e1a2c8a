"""`GraphJob`: the JSON text that a worker is given holds every value of the shape."""

from __future__ import annotations

from pathlib import Path

from nextn.compile.build.worker import GraphJob
from nextn.compile.targets.air.target import AirTarget
from nextn.compile.targets.target import Tools
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
        target=AirTarget("npu", custom_ops=("HcPre",)),
        tools=Tools("torch_npu 2.13.0", ("avx2", "fma"), {"vector_bits": 256}),
        output=tmp_path / "round.b4.air",
        weights=tmp_path / "weights.safetensors",
    )
    again = GraphJob.from_json(job.to_json())
    assert again == job
    assert hash(again.shape) == hash(shape)
