"""The one output of a graph: rows of the results it leaves, or of the control block if it leaves none."""

from __future__ import annotations

from nextn.compile.targets.air.om_interface import returned_bytes
from tests.npu.offline_models import LEAVE_RESULTS
from tests.npu.sessions import Converted

WIDTHS = {"result": 16, "control": 32}


def test_what_is_recorded_is_what_the_graph_returns(converted: Converted) -> None:
    """Graphs that draft bind the results, and may only read them."""
    for (name, batch), program in converted.programs.items():
        [output] = [op for op in program.graph.op if op.type == "NetOutput"]
        assert program.returns == ("control" if name in LEAVE_RESULTS else "result"), name
        assert list(output.input_desc[0].shape.dim) == [batch, WIDTHS[program.returns]], name
        assert returned_bytes(batch, program.returns) == batch * WIDTHS[program.returns] * 8
    assert "result" in {spec.name for spec in converted.programs["draft_extend", 2].tensors}


def test_which_graphs_agree_in_all_that_an_import_compares(converted: Converted) -> None:
    """Names are sizes too: a tensor has one of them in all graphs."""
    alike: dict[object, set[str]] = {}
    for (name, batch), program in converted.programs.items():
        interface = (tuple(spec.name for spec in program.tensors), program.returns, batch)
        alike.setdefault(interface, set()).add(name)
    assert [names for names in alike.values() if len(names) > 1] == [{"decode", "verify"}]
