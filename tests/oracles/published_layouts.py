"""Checkpoints in each published quantised layout, with the fp32 tensors their codes mean.

The quantisers choose codes and scales; the twin is what those codes are worth, worked out with torch's own
float8 types and plain products, never with the code under test. Names and dtypes follow the releases
(specification sections 2.1 and 2.6); shapes are those of the weights given.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]

FP8_MATRICES = re.compile(r".*\.(wq_a|wq_b|wkv|wo_a|wo_b|e_proj|h_proj|shared_experts\.w[123])\.weight")
FP4_MATRICES = re.compile(r".*\.experts\.\d+\.w[123]\.weight")
MODELSLIM_MATRICES = re.compile(r".*\.(wq_a|wq_b|wkv|(shared_experts|experts\.\d+)\.w[123])\.weight")
COMPRESSED_TENSORS_MATRICES = re.compile(
    r".*\.(wq_b|wo_b|e_proj|h_proj|(shared_experts|experts\.\d+)\.w[123])\.weight"
)
COMPRESSOR = re.compile(r".*\.compressor\.(wkv|wgate)\.weight")
FLOAT32_NAMES = re.compile(r".*(attn_sink|\.ape|gate\.bias|hc_\w+)")

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

QUANTIZATION_CONFIG = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}


def fp8_blocks(weight: Tensor) -> tuple[Tensors, Tensor]:
    """e4m3 codes with one power of two per 128 x 128 block, and their fp32 values."""
    rows, columns = weight.shape
    exponents = torch.empty(-(-rows // 128), -(-columns // 128), dtype=torch.int32)
    for i in range(exponents.shape[0]):
        for j in range(exponents.shape[1]):
            block = weight[128 * i : 128 * i + 128, 128 * j : 128 * j + 128]
            exponents[i, j] = power_above(block.abs().max() / 448)
    spread = exponents.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    codes = torch.ldexp(weight, -spread).to(torch.float8_e4m3fn)
    return {"weight": codes, "scale": as_ue8m0(exponents)}, torch.ldexp(codes.float(), spread)


def mxfp4_groups(weight: Tensor) -> tuple[Tensors, Tensor]:
    """e2m1 codes, two to a byte and low nibble first, with one power of two per 32 columns."""
    rows, columns = weight.shape
    groups = -(-columns // 32)
    padded = torch.nn.functional.pad(weight, (0, 32 * groups - columns)).view(rows, groups, 32)
    exponents = power_above(padded.abs().amax(-1) / 6)  # [rows, groups]
    spread = exponents.repeat_interleave(32, 1)[:, :columns]
    scaled = torch.ldexp(weight, -spread)
    magnitude = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    codes = (magnitude + 8 * (scaled < 0)).to(torch.uint8)
    values = E2M1[magnitude] * torch.where(scaled < 0, -1.0, 1.0)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8)
    return {"weight": packed, "scale": as_ue8m0(exponents)}, torch.ldexp(values, spread)


def int8_rows(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Symmetric int8 codes, one fp32 scale per row `[rows, 1]`, and their fp32 values."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scale).round().clamp(-127, 127).to(torch.int8)
    return codes, scale, codes.float() * scale


def power_above(limit: Tensor) -> Tensor:
    """The least exponent e with 2^e >= limit, int32."""
    return torch.log2(limit.clamp_min(2.0**-100)).ceil().to(torch.int32)


def as_ue8m0(exponents: Tensor) -> Tensor:
    return (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)


def release(weights: Tensors, fp4_experts: bool = True) -> tuple[Tensors, Tensors]:
    """The original release: fp8 dense matrices, fp4 experts, bfloat16 for the rest but a few fp32 names.

    Without `fp4_experts` the experts are fp8 too, as the release's own conversion script can write them.
    """

    def quantise(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        if FP4_MATRICES.fullmatch(name):
            return mxfp4_groups(weight) if fp4_experts else fp8_blocks(weight)
        is_dense = FP8_MATRICES.fullmatch(name) and not COMPRESSOR.fullmatch(name)
        return fp8_blocks(weight) if is_dense else None

    return _stored(weights, quantise)


def modelslim(weights: Tensors, more: str = "(?!)") -> tuple[Tensors, Tensors, dict[str, Any]]:
    """A ModelSlim W8A8 export, its twin and its description file.

    Args:
        more: pattern of further names to quantise, as exports that do quantise e_proj and h_proj.
    """

    def quantise(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        chosen = MODELSLIM_MATRICES.fullmatch(name) or re.fullmatch(more, name)
        if not chosen or COMPRESSOR.fullmatch(name):
            return None
        codes, scale, values = int8_rows(weight)
        return {"weight": codes, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}, values

    tensors, twin = _stored(weights, quantise)
    # Copies that another loader needs; the shared ones are to be used.
    tensors["mtp.0.emb.tok_emb.weight"] = tensors["embed.weight"].clone()
    tensors["mtp.0.head.weight"] = tensors["head.weight"].clone()
    description: dict[str, Any] = {
        "model_quant_type": "W8A8_DYNAMIC",
        "version": "1.0.0",
        "group_size": 0,
        "metadata": {"model_type": "deepseek_v4"},
    }
    for name in tensors:
        base = name.removesuffix("_scale").removesuffix("_offset")
        quantised = tensors[base].dtype == torch.int8 if base in tensors else False
        description[name] = "W8A8_DYNAMIC" if quantised else "FLOAT"
    return tensors, twin, description


def compressed_tensors(weights: Tensors) -> tuple[Tensors, Tensors]:
    """int8 with `.scale`, including the NextN projections."""

    def quantise(name: str, weight: Tensor) -> tuple[Tensors, Tensor] | None:
        if not COMPRESSED_TENSORS_MATRICES.fullmatch(name):
            return None
        codes, scale, values = int8_rows(weight)
        return {"weight": codes, "scale": scale}, values

    return _stored(weights, quantise)


def _stored(
    weights: Tensors, quantise: Callable[[str, Tensor], tuple[Tensors, Tensor] | None]
) -> tuple[Tensors, Tensors]:
    tensors: Tensors = {}
    twin: Tensors = {}
    for name, weight in weights.items():
        quantised = quantise(name, weight)
        if quantised is not None:
            parts, twin[name] = quantised
            base = name.removesuffix("weight")
            tensors |= {base + leaf: tensor.contiguous() for leaf, tensor in parts.items()}
        elif FLOAT32_NAMES.fullmatch(name) or not weight.is_floating_point():
            tensors[name] = twin[name] = weight.contiguous()
        else:
            tensors[name] = weight.to(torch.bfloat16)
            twin[name] = tensors[name].float()
    return tensors, twin


def write_sharded(
    folder: Path, config: dict[str, Any], tensors: Tensors, stem: str = "model", shards: int = 3
) -> Path:
    """`config.json`, `<stem>-0000i-of-0000n.safetensors` with `mtp.*` in the last, and the index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors, key=_is_draft)
    draft = sum(map(_is_draft, names))
    size = -(-(len(names) - draft) // (shards - 1))
    bounds = [min(i * size, len(names) - draft) for i in range(shards)] + [len(names)]
    weight_map = {}
    for i in range(shards):
        file = f"{stem}-{i + 1:05}-of-{shards:05}.safetensors"
        chosen = names[bounds[i] : bounds[i + 1]]
        save_file({name: tensors[name] for name in chosen}, folder / file)
        weight_map |= dict.fromkeys(chosen, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _is_draft(name: str) -> bool:
    return name.removeprefix("model.").startswith("mtp.")


def write_modelslim(
    folder: Path, config: dict[str, Any], tensors: Tensors, description: dict[str, Any]
) -> Path:
    """A ModelSlim export's files: its own shard names, and what was quantised."""
    write_sharded(folder, config, tensors, stem="quant_model_weights")
    (folder / "quant_model_description.json").write_text(json.dumps(description))
    return folder


LAYOUTS = {
    "release": ("original names", "fp8 with 128 x 128 blocks and mxfp4 in groups of 32"),
    "release with prefix": (
        "original names with a model. prefix",
        "fp8 with 128 x 128 blocks and mxfp4 in groups of 32",
    ),
    "release with fp8 experts": ("original names", "fp8 with 128 x 128 blocks"),
    "modelslim": ("original names", "ModelSlim W8A8"),
    "modelslim more": ("original names", "ModelSlim W8A8"),
    "compressed-tensors": ("original names", "compressed-tensors int8 with a scale per row"),
}
"""What `write_layout` can write, and how opening such a folder describes its names and its storage."""


def write_layout(folder: Path, layout: str, config: dict[str, Any], weights: Tensors) -> Tensors:
    """Writes `weights` in one of `LAYOUTS`; returns the fp32 tensors that the folder means."""
    if layout.startswith("modelslim"):
        more = r"mtp\.0\.[eh]_proj\.weight|.*wo_b\.weight" if "more" in layout else "(?!)"
        tensors, twin, description = modelslim(weights, more)
        write_modelslim(folder, config, tensors, description)
        return twin
    if layout == "compressed-tensors":
        tensors, twin = compressed_tensors(weights)
        config = config | {"quantization_config": {"quant_method": "compressed-tensors"}}
    else:
        tensors, twin = release(weights, fp4_experts="fp8" not in layout)
        config = config | {"quantization_config": QUANTIZATION_CONFIG, "expert_dtype": "fp4"}
        if "prefix" in layout:
            tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
    write_sharded(folder, config, tensors)
    return twin
