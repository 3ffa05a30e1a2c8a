"""Graphs as ONNX compute what the eager modules compute, and say what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from nextn.compile.targets.onnx.onnx_program import check
from nextn.compile.targets.onnx.target import NEWEST_OPSET, OnnxTarget
from nextn.graphs.eager_session import EagerRequest, EagerSession, GraphKey
from nextn.graphs.session_shape import SessionShape
from nextn.graphs.state import input_table, state_table
from nextn.runtime.contract.errors import ExecutionError
from nextn.weights import Checkpoint
from tests.onnx_artifact import small_checkpoint, write_artifact
from tests.onnx_sessions import KEYS, Exported, Outcome, differences, long_requests, outcome, requests
from tests.oracles.synthetic import CASES, random_weights, write_checkpoint

STATE_TOLERANCE = 2e-5
"""Measured: 5e-6."""

MANY_ROUNDS = 400


@pytest.fixture(scope="module")
def eager(exported: Exported) -> EagerSession:
    return exported.eager()


@pytest.fixture(scope="module")
def expected(eager: EagerSession) -> Outcome:
    return outcome(eager)


def test_rounds_equal_eager(exported: Exported, eager: EagerSession, expected: Outcome) -> None:
    session = exported.session()
    assert outcome(session) == expected
    assert max(differences(session.state, eager.state).values()) <= STATE_TOLERANCE
    lens = [length for _, accept_lens, _ in expected for length in accept_lens]
    assert {1, 2, 3} <= set(lens), "every acceptance occurs"


WRITTEN = {
    "prefill": {"control", "result", "tokens", "target_streams"},
    "seed": {"control", "nextn_stream", "nextn_window"},
    "round": {"control", "result", "target_streams", "nextn_stream", "nextn_window"},
}
"""By the phases' own text; those of the Target also write every layer's state."""

LAYER = {"window_0", "ring_0", "entries_0", "indexer_ring_0", "indexer_entries_0"}


HANDED_ON_INSIDE = {"seed": {"nextn_stream"}, "round": {"nextn_stream", "target_streams"}}
"""What one phase leaves for the next of the same graph, and no later graph reads."""


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[0])
def test_every_write_is_an_output_that_matters(
    exported: Exported, eager: EagerSession, expected: Outcome, key: GraphKey
) -> None:
    """An exporter that loses in-place writes gives a graph that passes every check.

    A lost write changes tokens or, in as few rounds as these, at least what another buffer holds.
    """
    names = {one.name for one in exported.runtime(key).get_outputs()}
    written = WRITTEN[key[0]] | (LAYER if key[0] != "seed" else set())
    assert names == {f"present.{name}" for name in written}
    assert unseen_losses(exported, key, eager, expected) == HANDED_ON_INSIDE.get(key[0], set())


def unseen_losses(
    exported: Exported,
    key: GraphKey,
    eager: EagerSession,
    expected: Outcome,
    ask: Callable[[], list[EagerRequest]] = requests,
) -> set[str]:
    """Outputs that launches may lose and no token, acceptance or other buffer tells."""
    unseen = set()
    for output in exported.runtime(key).get_outputs():
        session = exported.session(
            lost=(key, output.name), phases=eager.phases, speculation=eager.speculation
        )
        if loses(session, expected, ask()):
            continue
        found = differences(session.state, eager.state)
        others = [found[name] for name in found if f"present.{name}" != output.name]
        if max(others) <= 100 * STATE_TOLERANCE:
            unseen.add(output.name.removeprefix("present."))
    return unseen


def loses(session: EagerSession, expected: Outcome, asked: list[EagerRequest]) -> bool:
    """Whether a session's outcome differs; one that never ends, or emits nothing, differs."""
    rounds = iter(range(MANY_ROUNDS))
    launch = session.round

    def limited() -> None:
        next(rounds)
        launch()

    session.round = limited  # type: ignore[method-assign]
    try:
        return outcome(session, asked) != expected
    except (StopIteration, IndexError):
        return True


def test_inputs_and_outputs_are_the_contract(exported: Exported) -> None:
    shape = exported.shape
    state = {one.name: one.shape(shape.slots) for one in state_table(shape)}
    inputs = {one.name: one.shape for one in input_table(shape)}
    for key in exported.keys:
        graph = exported.model(key).graph
        for value in (*graph.input, *graph.output):
            dims = tuple(one.dim_value for one in value.type.tensor_type.shape.dim)
            kind, _, name = value.name.partition(".")
            if name:
                assert kind in ("past", "present") and dims == state[name], value.name
            else:
                assert dims == inputs[kind], value.name
        read = {value.name.removeprefix("past.") for value in graph.input}
        assert {value.name.removeprefix("present.") for value in graph.output} <= read


def test_only_standard_operators(exported: Exported) -> None:
    for key in exported.keys:
        model = exported.model(key)
        assert [(one.domain, one.version) for one in model.opset_import] == [("", 18)]
        assert not model.functions
        assert {node.domain for node in model.graph.node} == {""}
        for node in model.graph.node:
            assert onnx.defs.has(node.op_type, max_inclusive_version=18), node.op_type


def test_weights_are_the_artifacts_file_and_never_transposed(exported: Exported) -> None:
    """Initializers name bytes of the one file, all that is large is among them, and no node rewrites one."""
    for key in exported.keys:
        graph = exported.model(key).graph
        external = {
            one.name: one for one in graph.initializer if one.data_location == onnx.TensorProto.EXTERNAL
        }
        for one in external.values():
            assert {item.key: item.value for item in one.external_data}["location"] == "weights.safetensors"
        assert sum(len(one.raw_data) for one in graph.initializer) < 4000
        for node in graph.node:
            if node.op_type in ("Transpose", "Reshape", "Cast"):
                assert node.input[0] not in external, node.name


def test_a_person_can_read_it(exported: Exported) -> None:
    for key in exported.keys:
        model = exported.model(key)
        properties = {one.key: one.value for one in model.metadata_props}
        assert (properties["nextn.graph"], properties["nextn.batch"]) == (key[0], str(key[1]))
        assert (properties["nextn.speculative_num_steps"], properties["nextn.dtype"]) == ("2", "float32")
        assert model.producer_name == "nextn-compile" and model.doc_string and model.graph.doc_string
        assert all(value.doc_string for value in (*model.graph.input, *model.graph.output))
        names = Counter(node.name for node in model.graph.node)
        assert max(names.values()) == 1 and all("/" in name for name in names)
        shown = {info.name for info in (*model.graph.value_info, *model.graph.output)}
        made = [node for node in model.graph.node if node.output[0] in shown]
        assert len(made) > 0.9 * len(model.graph.node), "viewers show shapes"
    scopes = {name.rpartition("/")[0] for name in names}
    assert {"layers.0.attn", "layers.0.attn.indexer.compressor", "mtp.0.ffn", "sample_token"} <= scopes


def test_shape_inference_is_compared_with_what_is_declared(exported: Exported, tmp_path) -> None:
    """The check at compile time notices a value of another shape than the traced one."""
    model = exported.model(("round", 2))
    model.graph.value_info[5].type.tensor_type.shape.dim[0].dim_value += 1
    with open(tmp_path / "weights.safetensors", "wb") as weights:
        weights.truncate((exported.artifact / OnnxTarget.weights_file).stat().st_size)
    file = tmp_path / "round.onnx"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(
        ExecutionError, match="the ONNX checker refuses a graph: .*Inferred shape and existing shape differ"
    ):
        check(file)


def test_the_widest_window_converts(tmp_path: Path) -> None:
    """At k = 8 the drafts are a whole field of the control block: what was a slice is the field itself."""
    checkpoint, shape = small_checkpoint(tmp_path / "checkpoint")
    shape = replace(shape, num_steps=8)
    artifact = write_artifact(tmp_path / "artifact", checkpoint, shape, [("verify", 2)])
    model = onnx.load(artifact / "graphs" / "verify.b2.onnx", load_external_data=False)
    assert {"present.control", "present.target_streams"} & {one.name for one in model.graph.output}
    assert model.opset_import[0].version == 18


@pytest.mark.full
@pytest.mark.parametrize("mode", ["phases", "plain"])
def test_every_write_of_separate_phases_matters(tmp_path: Path, mode: str) -> None:
    """One layer of each kind, k = 3, in the newest operator set: what one phase leaves, the next needs."""
    config = CASES["tiny"].config
    folder = write_checkpoint(tmp_path / "checkpoint", config, random_weights(config, seed=7))
    checkpoint = Checkpoint.open(folder)
    shape = SessionShape(checkpoint.config, num_steps=3, batch_sizes=(2,), max_seq_len=192, prefill_chunk=16)
    names = ("verify", "accept", "draft_extend", "draft_step") if mode == "phases" else ("decode",)
    keys = [("prefill", 1), ("seed", 1), *((name, 2) for name in names)]
    artifact = write_artifact(tmp_path / "artifact", checkpoint, shape, keys, NEWEST_OPSET)
    exported = Exported(artifact, shape, keys)
    eager = exported.eager(phases=mode == "phases", speculation=mode == "phases")
    expected = outcome(eager, long_requests())
    found = exported.session(phases=eager.phases, speculation=eager.speculation)
    assert outcome(found, long_requests()) == expected
    assert max(differences(found.state, eager.state).values()) <= STATE_TOLERANCE
    for key in keys[2:]:
        # Plain decoding keeps the streams that a draft would start from.
        unread = {"target_streams"} if key[0] == "decode" else set()
        assert unseen_losses(exported, key, eager, expected, long_requests) == unread, key
