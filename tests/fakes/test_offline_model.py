"""Offline models: the file that GE saved, loaded and run through ACL alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.fakes.acl import Acl, AclError, Dataset
from tests.fakes.cann.log import FakeCann

PARAM_INVALID = 100000
INPUT_NOT_MATCH = 100017
OUTPUT_NOT_MATCH = 100018
GE_PARAM_INVALID = 145000
PATH_INVALID = 145002
ID_INVALID = 145003
SIZE_INVALID = 145006
ADDRESS_INVALID = 145007

INPUT_BYTES = [4 * 8, 32 * 8 * 4, 4 * 8 * 4]
"""slots [4] int64, cache [32, 8] float32, rows [4, 8] float32"""
OUTPUT_BYTES = [4 * 8 * 4, 4 * 8]
"""the rows as read back, and where each is largest"""


class WriteRows(torch.nn.Module):
    """Writes rows into a cache in place and reads them back.

    torchair orders inputs by first use, and adds a written tensor to the outputs if nothing reads it after.
    """

    def forward(
        self, slots: torch.Tensor, cache: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        torch.ops.npu.npu_scatter_nd_update_(cache, slots.unsqueeze(-1), rows)
        return cache.index_select(0, slots), rows.argmax(-1)


@pytest.fixture(scope="module")
def air(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch_npu  # noqa: F401
    import torchair

    folder = tmp_path_factory.mktemp("air")
    arguments = (torch.zeros(4, dtype=torch.long), torch.zeros(32, 8), torch.zeros(4, 8))
    with torch.inference_mode():
        torchair.dynamo_export(
            *(argument.npu() for argument in arguments),
            model=WriteRows(),
            export_path=str(folder),
            export_name="write_rows",
            dynamic=False,
        )
    return folder / "write_rows.air"


@dataclass
class Call:
    """A loaded model with memory for every tensor."""

    acl: Acl
    model: int
    places: list[int]
    inputs: Dataset
    outputs: Dataset

    def execute(self) -> None:
        self.acl.execute(self.model, self.inputs, self.outputs)


@pytest.fixture
def acl(cann: FakeCann) -> Acl:
    return Acl(cann.library)


@pytest.fixture
def call(acl: Acl, air: Path) -> Iterator[Call]:
    model = acl.load(air)
    places = [acl.malloc(nbytes) for nbytes in (*INPUT_BYTES, *OUTPUT_BYTES)]
    inputs = acl.make_dataset(list(zip(places[:3], INPUT_BYTES, strict=True)))
    outputs = acl.make_dataset(list(zip(places[3:], OUTPUT_BYTES, strict=True)))
    yield Call(acl, model, places, inputs, outputs)
    acl.destroy_dataset(inputs)
    acl.destroy_dataset(outputs)
    for place in places:
        acl.free(place)
    acl.call("aclmdlUnload", model)


def test_a_model_says_what_it_takes_and_gives(call: Call) -> None:
    assert call.acl.sizes(call.model) == (INPUT_BYTES, OUTPUT_BYTES)


def test_a_run_is_one_record(cann: FakeCann, call: Call, air: Path) -> None:
    stream = call.acl.create_stream()
    cann.clear()
    call.acl.execute(call.model, call.inputs, call.outputs, stream)
    [record] = cann.take()
    assert (record.kind, record.name, record.error) == ("model_execute", str(air), 0)
    assert (record.nbytes, record.blocking) == (sum(INPUT_BYTES) + sum(OUTPUT_BYTES), False)
    call.acl.call("aclrtDestroyStream", stream)


def test_without_a_stream_the_host_waits(cann: FakeCann, call: Call) -> None:
    cann.clear()
    call.execute()
    [record] = cann.take()
    assert (record.kind, record.blocking) == ("model_execute", True)


@pytest.mark.parametrize(("index", "side"), [(0, "inputs"), (1, "inputs"), (2, "inputs"), (1, "outputs")])
def test_a_buffer_that_is_too_small_is_refused(cann: FakeCann, call: Call, index: int, side: str) -> None:
    sizes = (INPUT_BYTES if side == "inputs" else OUTPUT_BYTES).copy()
    sizes[index] -= 1
    places = call.places[:3] if side == "inputs" else call.places[3:]
    short = call.acl.make_dataset(list(zip(places, sizes, strict=True)))
    datasets = {"inputs": call.inputs, "outputs": call.outputs, side: short}
    cann.clear()
    with pytest.raises(AclError, match=str(SIZE_INVALID)):
        call.acl.execute(call.model, **datasets)
    assert [record.error for record in cann.take()] == [SIZE_INVALID]
    call.acl.destroy_dataset(short)


def test_a_buffer_larger_than_its_allocation_is_refused(call: Call) -> None:
    """The data buffer claims enough bytes; the memory behind it does not have them."""
    place = call.acl.malloc(OUTPUT_BYTES[0] - 1)
    memory = list(zip([place, call.places[4]], OUTPUT_BYTES, strict=True))
    claimed = call.acl.make_dataset(memory)
    with pytest.raises(AclError, match=str(ADDRESS_INVALID)):
        call.acl.execute(call.model, call.inputs, claimed)
    call.acl.destroy_dataset(claimed)
    call.acl.free(place)


def test_freed_memory_is_refused(call: Call) -> None:
    call.execute()
    call.acl.free(call.places[1])
    with pytest.raises(AclError, match=str(ADDRESS_INVALID)):
        call.execute()
    call.places[1] = call.acl.malloc(INPUT_BYTES[1])


def test_a_destroyed_data_buffer_is_refused(call: Call) -> None:
    call.acl.call("aclDestroyDataBuffer", call.inputs.buffers.pop())
    with pytest.raises(AclError, match=str(ADDRESS_INVALID)):
        call.execute()


def test_datasets_must_have_as_many_buffers_as_the_model(call: Call) -> None:
    inputs = call.acl.make_dataset([(call.places[0], INPUT_BYTES[0])])
    outputs = call.acl.make_dataset([])
    with pytest.raises(AclError, match=str(INPUT_NOT_MATCH)):
        call.acl.execute(call.model, inputs, call.outputs)
    with pytest.raises(AclError, match=str(OUTPUT_NOT_MATCH)):
        call.acl.execute(call.model, call.inputs, outputs)
    call.acl.destroy_dataset(inputs)
    call.acl.destroy_dataset(outputs)


def test_an_unloaded_model_does_not_run(acl: Acl, air: Path, call: Call) -> None:
    other = acl.load(air)
    acl.call("aclmdlUnload", other)
    with pytest.raises(AclError, match=str(ID_INVALID)):
        acl.execute(other, call.inputs, call.outputs)
    with pytest.raises(AclError, match=str(ID_INVALID)):
        acl.call("aclmdlUnload", other)
    call.execute()


def test_the_memory_lent_to_a_model_must_be_enough_and_stay(acl: Acl, air: Path, call: Call) -> None:
    work_bytes, weight_bytes = acl.query_size(air)
    work, weights = acl.malloc(work_bytes), acl.malloc(weight_bytes)
    with pytest.raises(AclError, match=str(SIZE_INVALID)):
        acl.load_into(air, (work, work_bytes - 1), (weights, weight_bytes))
    model = acl.load_into(air, (work, work_bytes), (weights, weight_bytes))
    acl.execute(model, call.inputs, call.outputs)
    acl.free(work)
    with pytest.raises(AclError, match=str(ADDRESS_INVALID)):
        acl.execute(model, call.inputs, call.outputs)
    acl.call("aclmdlUnload", model)
    acl.free(weights)


def test_files_that_are_no_models_are_refused(acl: Acl, air: Path, tmp_path: Path) -> None:
    with pytest.raises(AclError, match=str(PATH_INVALID)):
        acl.load(tmp_path / "missing.air")
    for name, content in (("empty", b""), ("text", b"not a model" * 9), ("cut", air.read_bytes()[:100])):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(AclError, match=str(GE_PARAM_INVALID)):
            acl.load(path)


def test_everything_is_given_back_and_what_is_not_shows(cann: FakeCann, acl: Acl, air: Path) -> None:
    before = cann.live()
    model = acl.load(air)
    place = acl.malloc(64)
    dataset = acl.make_dataset([(place, 64)])
    during = cann.live()
    assert during.models == before.models + 1
    assert during.model_objects == before.model_objects + 2
    assert during.allocations > before.allocations
    acl.destroy_dataset(dataset)
    acl.free(place)
    assert cann.live() != before
    acl.call("aclmdlUnload", model)
    assert cann.live() == before
