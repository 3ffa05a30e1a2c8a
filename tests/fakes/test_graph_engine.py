"""GE: torchair converts, hands the graph over, compiles and runs it; what it cannot convert it refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.fakes.cann.log import FakeCann


class Double(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.softmax(rows * 2, -1)


class PutRows(torch.nn.Module):
    """index_put has no converter."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.index_put((torch.zeros(1, dtype=torch.long, device=rows.device),), rows[:1])


class Breaks(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows * 2
        torch._dynamo.graph_break()
        return rows + 1


def export(model: torch.nn.Module, folder: Path) -> Path:
    import torch_npu  # noqa: F401
    import torchair

    torch._dynamo.reset()
    rows = torch.zeros(4, 8).npu()
    with torch.inference_mode():
        torchair.dynamo_export(rows, model=model, export_path=str(folder), export_name="graph", dynamic=False)
    return folder / "graph.air"


def test_an_exported_graph_is_the_model_def_that_torchair_made(cann: FakeCann, tmp_path: Path) -> None:
    from torchair._ge_concrete_graph.ge_ir_pb2 import ModelDef

    path = export(Double(), tmp_path)
    model = ModelDef.FromString(path.read_bytes())
    types = Counter(op.type for op in model.graph[0].op)
    assert {"Data": 1, "SoftmaxV2": 1, "NetOutput": 1}.items() <= types.items()
    steps = {record.name: record for record in cann.take() if record.kind == "graph"}
    assert steps["parse"].tasks == types.total()
    assert steps["save"].detail == str(path)


def test_an_operator_without_a_converter_is_refused(cann: FakeCann, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="index_put"):
        export(PutRows(), tmp_path)
    assert not [record for record in cann.take() if record.name == "save"]


def test_a_graph_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="(?i)graph.break"):
        export(Breaks(), tmp_path)


def test_a_compiled_graph_runs_as_one_record(cann: FakeCann) -> None:
    import torchair

    torch._dynamo.reset()
    compiled = torch.compile(Double(), backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
    rows = torch.zeros(4, 8).npu()
    with torch.inference_mode():
        assert compiled(rows).shape == rows.shape
        steps = [record.name for record in cann.take() if record.kind == "graph"]
        compiled(rows)
    assert steps.index("add") < steps.index("compile")
    records = cann.take()
    [run] = [record for record in records if record.kind == "replay"]
    assert (run.name, run.captured) == ("GE graph", False)
    assert not [record for record in records if record.kind in ("launch", "graph")]
