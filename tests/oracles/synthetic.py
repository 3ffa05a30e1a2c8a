"""Tiny random DeepSeek-V4 checkpoints in the release's tensor names.

The weights are random but scaled so that every part matters: logits have a spread of about 3 (the largest
near 10), sinks, position biases, gates and stream mixing are all away from zero, and negative index
weights occur. The one non-random thing is the `agreement` knob, described at `random_weights`.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.oracles.shape_cases import CASES, QUICK, Config, ShapeCase

__all__ = ["CASES", "QUICK", "Config", "ShapeCase", "random_weights", "successors", "write_checkpoint"]

DEFAULT_AGREEMENT = 0.9
# Standard deviation of one logit over the vocabulary.
LOGIT_SPREAD = 3.0
# Names that the release stores in fp32 whatever the dtype of the rest.
FLOAT32_SUFFIXES = ("attn_sink", ".ape", "gate.bias")


class _Draw:
    """Random tensors from one generator; the order of calls is part of a checkpoint's identity."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        return mean + scale * torch.randn(*shape, generator=self._generator)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        """[rows, columns] that maps unit-variance inputs to outputs of standard deviation `gain`."""
        return self.normal(rows, columns, scale=gain / math.sqrt(columns))

    def norm_weight(self, width: int) -> Tensor:
        return self.normal(width, scale=0.2, mean=1.0)

    def permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._generator)

    def distinct_rows(self, rows: int, limit: int, width: int) -> Tensor:
        """[rows, width] int64, every row a set of different values below `limit`."""
        order = torch.rand(rows, limit, generator=self._generator).argsort(dim=1)
        return order[:, :width].contiguous()


def successors(vocab_size: int, seed: int) -> Tensor:
    """[V] int64: a random map of each token to its favoured next token, one single cycle over all."""
    cycle = _Draw(seed + 1).permutation(vocab_size)
    following = torch.empty_like(cycle)
    following[cycle] = cycle.roll(-1)
    return following


def random_weights(config: Config, seed: int, agreement: float = DEFAULT_AGREEMENT) -> dict[str, Tensor]:
    """All tensors of a checkpoint, fp32 (routing tables int64), including `mtp.0.*`.

    `agreement` in [0, 1] is the correlation between the LM head row of a token and the embedding of the
    token it favours to follow. Target and NextN then lean towards the same next token, and how often their
    blocks push them elsewhere decides how many drafts are accepted. 0 makes acceptance as rare as chance.
    """
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    draw = _Draw(seed)
    embedding = draw.normal(vocab, hidden)  # [V, H]
    # Row v of the head resembles the embedding of the token that v should follow.
    favoured = torch.empty_like(embedding)
    favoured[successors(vocab, seed)] = embedding  # [V, H]
    independent = math.sqrt(1.0 - agreement**2)
    head = agreement * favoured + independent * draw.normal(vocab, hidden)
    weights = {
        "embed.weight": embedding,
        "head.weight": head * (LOGIT_SPREAD / math.sqrt(hidden)),
        "norm.weight": draw.norm_weight(hidden),
        **_stream_head("", config, draw),
    }
    # Blocks add up along the depth; without this a deep target would drown its embedding.
    block_gain = math.sqrt(2.0 / config["num_hidden_layers"])
    for index in range(config["num_hidden_layers"]):
        ratio = config["compress_ratios"][index]
        hashed = index < config["num_hash_layers"]
        weights |= _layer(f"layers.{index}.", config, draw, ratio, hashed, gain=block_gain)
    weights |= _nextn("mtp.0.", config, draw)
    return weights


def _nextn(prefix: str, config: Config, draw: _Draw) -> dict[str, Tensor]:
    """The NextN layer: a window-only, score-routed layer plus fusion, own stream head and own norm."""
    hidden = config["hidden_size"]
    return {
        # Mostly passes the new token's embedding on, which is what lets NextN agree with the target.
        f"{prefix}e_proj.weight": torch.eye(hidden) + draw.matrix(hidden, hidden, gain=0.3),
        f"{prefix}h_proj.weight": draw.matrix(hidden, hidden, gain=1.0),
        f"{prefix}enorm.weight": draw.norm_weight(hidden),
        f"{prefix}hnorm.weight": draw.norm_weight(hidden),
        f"{prefix}norm.weight": draw.norm_weight(hidden),
        **_stream_head(prefix, config, draw),
        **_layer(prefix, config, draw, ratio=0, hashed=False, gain=1.0),
    }


def _layer(
    prefix: str, config: Config, draw: _Draw, ratio: int, hashed: bool, gain: float
) -> dict[str, Tensor]:
    """One decoder layer whose attention and experts each add about `gain` to the streams."""
    hidden = config["hidden_size"]
    return {
        f"{prefix}attn_norm.weight": draw.norm_weight(hidden),
        f"{prefix}ffn_norm.weight": draw.norm_weight(hidden),
        **_stream_mixing(f"{prefix}hc_attn_", config, draw),
        **_stream_mixing(f"{prefix}hc_ffn_", config, draw),
        **_attention(f"{prefix}attn.", config, draw, ratio, gain),
        **_experts(f"{prefix}ffn.", config, draw, hashed, gain),
    }


def _stream_mixing(prefix: str, config: Config, draw: _Draw) -> dict[str, Tensor]:
    streams = config["hc_mult"]
    outputs, inputs = (2 + streams) * streams, streams * config["hidden_size"]
    return {
        f"{prefix}fn": draw.matrix(outputs, inputs),
        f"{prefix}base": draw.normal(outputs, scale=1.5),
        f"{prefix}scale": draw.normal(3, scale=0.2, mean=0.9),
    }


def _stream_head(prefix: str, config: Config, draw: _Draw) -> dict[str, Tensor]:
    streams = config["hc_mult"]
    return {
        f"{prefix}hc_head_fn": draw.matrix(streams, streams * config["hidden_size"]),
        f"{prefix}hc_head_base": draw.normal(streams, scale=0.7),
        f"{prefix}hc_head_scale": draw.normal(1, scale=0.2, mean=0.9),
    }


def _attention(prefix: str, config: Config, draw: _Draw, ratio: int, gain: float) -> dict[str, Tensor]:
    hidden, heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    groups, group_rank, query_rank = config["o_groups"], config["o_lora_rank"], config["q_lora_rank"]
    weights = {
        f"{prefix}attn_sink": draw.normal(heads),
        f"{prefix}wq_a.weight": draw.matrix(query_rank, hidden),
        f"{prefix}q_norm.weight": draw.norm_weight(query_rank),
        f"{prefix}wq_b.weight": draw.matrix(heads * head_dim, query_rank),
        f"{prefix}wkv.weight": draw.matrix(head_dim, hidden),
        # Above 1, so that scores spread and attention is not close to an average.
        f"{prefix}kv_norm.weight": 1.5 * draw.norm_weight(head_dim),
        f"{prefix}wo_a.weight": draw.matrix(groups * group_rank, heads * head_dim // groups),
        f"{prefix}wo_b.weight": draw.matrix(hidden, groups * group_rank, gain=0.8 * gain),
    }
    if ratio:
        weights |= _compressor(f"{prefix}compressor.", hidden, head_dim, draw, ratio)
    if ratio == 4:
        index_heads, index_dim = config["index_n_heads"], config["index_head_dim"]
        weights |= {
            f"{prefix}indexer.wq_b.weight": draw.matrix(index_heads * index_dim, query_rank),
            f"{prefix}indexer.weights_proj.weight": draw.matrix(index_heads, hidden),
            **_compressor(f"{prefix}indexer.compressor.", hidden, index_dim, draw, ratio),
        }
    return weights


def _compressor(prefix: str, hidden: int, width: int, draw: _Draw, ratio: int) -> dict[str, Tensor]:
    # C4 entries overlap, so each token gives one half to its own entry and one to the next.
    columns = 2 * width if ratio == 4 else width
    return {
        f"{prefix}ape": draw.normal(ratio, columns),
        f"{prefix}wkv.weight": draw.matrix(columns, hidden),
        f"{prefix}wgate.weight": draw.matrix(columns, hidden, gain=1.5),
        f"{prefix}norm.weight": draw.norm_weight(width),
    }


def _experts(prefix: str, config: Config, draw: _Draw, hashed: bool, gain: float) -> dict[str, Tensor]:
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    count, chosen = config["n_routed_experts"], config["num_experts_per_tok"]
    weights = {f"{prefix}gate.weight": draw.matrix(count, hidden, gain=2.0)}
    if hashed:
        weights[f"{prefix}gate.tid2eid"] = draw.distinct_rows(config["vocab_size"], count, chosen)
    else:
        weights[f"{prefix}gate.bias"] = draw.normal(count, scale=0.3)
    for name in [f"experts.{index}" for index in range(count)] + ["shared_experts"]:
        weights |= {
            f"{prefix}{name}.w1.weight": draw.matrix(inner, hidden, gain=1.5),
            f"{prefix}{name}.w2.weight": draw.matrix(hidden, inner, gain=0.6 * gain),
            f"{prefix}{name}.w3.weight": draw.matrix(inner, hidden, gain=1.5),
        }
    return weights


def write_checkpoint(
    folder: Path | str, config: Config, weights: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> Path:
    """Write `config.json` and `model.safetensors`.

    With bfloat16, tensors that the release keeps in fp32 stay fp32 and routing tables stay int64; all
    others, also those the release quantises, are stored as bfloat16.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: _as_stored(name, weight, dtype) for name, weight in weights.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    written = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    return folder


def _as_stored(name: str, weight: Tensor, dtype: torch.dtype) -> Tensor:
    keep = name.endswith(FLOAT32_SUFFIXES) or "hc_" in name or not weight.is_floating_point()
    return weight.contiguous() if keep else weight.to(dtype).contiguous()
