"""The graphs of the Flash release at their real size, through the compile worker; weights are never there."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef

from nextn.compile.build.worker import GraphJob
from nextn.compile.targets.air.target import AirTarget
from nextn.compile.targets.ascend.fused_ops import CUSTOM_OPS
from nextn.compile.targets.target import Tools
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import state_table
from nextn.weights.config_json import parse_model_config
from tests.graphs.releases import flash_config
from tests.npu.test_emit_air import WORKER_ON_THE_FAKE

LAYERS, CPU_SECONDS, PEAK_BYTES, FILE_BYTES = 43, 600, 4 << 30, 64 << 20

PACKAGE = ("Compressor", "HcPost", "HcPre", "LightningIndexer", "SparseAttnSharedkv")
"""What stands beside torch_npu where the release is served; `Mhc*` are for the same places as `Hc*`."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "custom_ops"), [("round", ()), ("prefill", ()), ("round", PACKAGE), ("prefill", PACKAGE)]
)
def test_flash_converts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, custom_ops: tuple[str, ...]
) -> None:
    """Processor time, so that other work on the machine does not count: 190 s and 2.3 GB for `round`."""
    config, _ = parse_model_config(flash_config(), "config.json")
    multiples = (16, 128) if custom_ops else (1,)
    shape = SessionShape(config, dtype="bfloat16", max_seq_len=32768, entry_rows_multiples=multiples)
    monkeypatch.setenv("FAKE_CANN_CUSTOM_OPS", ",".join((*custom_ops, "SparseAttnSharedkvMetadata")))
    job = GraphJob(
        name,
        1,
        shape,
        AirTarget("npu", custom_ops=custom_ops),
        Tools("torch_npu"),
        tmp_path / f"{name}.b1.air",
        tmp_path / "weights.safetensors",
    )
    (tmp_path / "job.json").write_text(job.to_json())
    with open(tmp_path / "log", "wb") as log:
        command = [*WORKER_ON_THE_FAKE, str(tmp_path / "job.json"), str(os.getpid())]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, (tmp_path / "log").read_text()[-2000:]
    seconds, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
    model = ModelDef()
    model.ParseFromString(job.output.read_bytes())
    operators = model.graph[0].op
    kinds = Counter(operator.type for operator in operators)
    print(f"{name}: {len(operators)} operators, {seconds:.0f} s, {peak / 1e9:.1f} GB")
    assert set(custom_ops) == kinds.keys() & set(CUSTOM_OPS)
    assert seconds < CPU_SECONDS and peak < PEAK_BYTES and job.output.stat().st_size < FILE_BYTES
    state = {spec.name.replace(".", "_") for spec in state_table(shape)}
    changed = {operator.name for operator in operators if operator.type == "RefData"}
    # A ring and more for each layer: a graph that lost its layers would be small as well.
    assert changed <= state and len(changed) > LAYERS
    (output,) = (operator for operator in operators if operator.type == "NetOutput")
    assert len([source for source in output.input if not source.endswith(":-1")]) == 1
