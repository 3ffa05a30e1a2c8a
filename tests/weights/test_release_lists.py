"""Every tensor of the releases has exactly one destination, and every destination is filled exactly once."""

import dataclasses
from collections import Counter
from math import prod

import pytest

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights import Checkpoint, packed_weights
from tests.weights.release_lists import CONFIGS, TOTALS, ListedTensor, release_tensors, write_headers

SHARDS = {"flash": 46, "pro": 64}


@pytest.mark.parametrize("model", ["flash", pytest.param("pro", marks=pytest.mark.full)])
def test_the_full_list_maps_one_to_one(tmp_path, model):
    config = CONFIGS[model]()
    tensors = release_tensors(model, config["n_routed_experts"])
    assert len({tensor.name for tensor in tensors}) == len(tensors) == TOTALS[model]
    checkpoint = Checkpoint.open(write_headers(tmp_path, config, tensors, SHARDS[model]))
    assert checkpoint.has_nextn and checkpoint.warnings == ()
    assert checkpoint.config.num_layers == config["num_hidden_layers"]

    # Every name on disk is data or scales of one encoded tensor, and of one only.
    uses = Counter(stored.name for tensor in checkpoint.tensors.values() for stored in tensor.stored)
    assert uses == Counter(tensor.name for tensor in tensors)

    # Every encoded tensor is one part of one packed weight; parts fill it without gap or overlap.
    destinations: Counter[str] = Counter()
    for weight in packed_weights(checkpoint.config, with_nextn=True):
        destinations.update(part.name for part in weight.parts)
        assert sum(prod(part.shape) for part in weight.parts) == prod(weight.shape)
    assert destinations == Counter(dict.fromkeys(checkpoint.tensors, 1))

    # Values on disk, worked out from the list alone: two to a byte in fp4, scales are none.
    listed = sum(
        prod(tensor.shape) * (2 if tensor.dtype == "I8" else 1)
        for tensor in tensors
        if not tensor.name.endswith(".scale")
    )
    assert listed == sum(prod(tensor.shape) for tensor in checkpoint.tensors.values())


def every_kind(model: str) -> tuple[dict, list[ListedTensor]]:
    """The release's first four layers and NextN, with one expert: every kind of tensor, few names."""
    config = CONFIGS[model]()
    config |= {
        "num_hidden_layers": 4,
        "compress_ratios": [*config["compress_ratios"][:4], 0],
        "n_routed_experts": 1,
        "num_experts_per_tok": 1,
    }
    tensors = []
    for tensor in release_tensors(model, 1):
        if tensor.name.startswith("layers.") and int(tensor.name.split(".")[1]) >= 4:
            continue
        if tensor.name.endswith(("ffn.gate.weight", "ffn.gate.bias")):
            tensor = dataclasses.replace(tensor, shape=(1, *tensor.shape[1:]))
        elif tensor.name.endswith("tid2eid"):
            tensor = dataclasses.replace(tensor, shape=(tensor.shape[0], 1))
        tensors.append(tensor)
    return config, tensors


DTYPE_INSTEAD = {"F32": "I32", "BF16": "F64", "F8_E4M3": "F8_E5M2", "F8_E8M0": "U8", "I8": "U8", "I64": "F32"}


@pytest.mark.parametrize("change", ["name", "shape", "dtype"])
@pytest.mark.parametrize("model", ["flash", pytest.param("pro", marks=pytest.mark.full)])
def test_one_change_anywhere_is_refused_by_name(tmp_path, model, change):
    config, tensors = every_kind(model)
    assert Checkpoint.open(write_headers(tmp_path, config, tensors, 2)).has_nextn
    for place, tensor in enumerate(tensors):
        changed = {
            "name": dataclasses.replace(tensor, name=tensor.name + "_"),
            "shape": dataclasses.replace(tensor, shape=(*tensor.shape[:-1], tensor.shape[-1] + 1)),
            "dtype": dataclasses.replace(tensor, dtype=DTYPE_INSTEAD[tensor.dtype]),
        }[change]
        folder = write_headers(tmp_path, config, [*tensors[:place], changed, *tensors[place + 1 :]], shards=2)
        if tensor.name == "mtp.0.enorm.weight" and change == "name":
            # Without it the block is no NextN layer; the Target alone is sound.
            assert Checkpoint.open(folder).draft.kind == "foreign"
            continue
        with pytest.raises(CheckpointError) as caught:
            Checkpoint.open(folder)
        about = tensor.name.removesuffix(".scale")
        assert caught.value.key is not None and caught.value.key.startswith(about), tensor.name
