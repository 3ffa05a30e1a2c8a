"""The NextN (MTP) layer, assembled from Hugging Face's decoder layer plus the published fusion formula.

    e = enorm(embed[t])                 t is the token at position i + 1
    Z = e_proj(e) + h_proj(hnorm(S))    S are the streams of position i; one matrix for every stream
    Z = block(Z)                        a window-only, score-routed layer at position i
    logits = head(norm(hc_head(Z)))     own stream head and norm, shared embedding and LM head

Row i predicts the token at position i + 2; Z is what a further draft step takes as its S.
"""

import copy
import re
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4Config,
    DeepseekV4DecoderLayer,
    DeepseekV4HyperHead,
    DeepseekV4RMSNorm,
    DeepseekV4RotaryEmbedding,
)

from tests.oracles.hugging_face import HuggingFaceTarget

PREFIX = "mtp.0."
# Names inside the block, release to Hugging Face; experts are stacked apart.
_BLOCK_RENAMES = (
    (r"^attn_norm\.", "input_layernorm."),
    (r"^ffn_norm\.", "post_attention_layernorm."),
    (r"^hc_attn_", "attn_hc."),
    (r"^hc_ffn_", "ffn_hc."),
    (r"^attn\.attn_sink$", "self_attn.sinks"),
    (r"^attn\.q_norm\.", "self_attn.q_a_norm."),
    (r"^attn\.kv_norm\.", "self_attn.kv_norm."),
    (r"^attn\.wq_a\.", "self_attn.q_a_proj."),
    (r"^attn\.wq_b\.", "self_attn.q_b_proj."),
    (r"^attn\.wkv\.", "self_attn.kv_proj."),
    (r"^attn\.wo_a\.", "self_attn.o_a_proj."),
    (r"^attn\.wo_b\.", "self_attn.o_b_proj."),
    (r"^ffn\.gate\.bias$", "mlp.gate.e_score_correction_bias"),
    (r"^ffn\.gate\.weight$", "mlp.gate.weight"),
    (r"^ffn\.shared_experts\.w1\.", "mlp.shared_experts.gate_proj."),
    (r"^ffn\.shared_experts\.w2\.", "mlp.shared_experts.down_proj."),
    (r"^ffn\.shared_experts\.w3\.", "mlp.shared_experts.up_proj."),
)


class NextnTwin(nn.Module):
    """One-go, cache-free NextN over a run of rows at increasing positions."""

    def __init__(self, config: DeepseekV4Config, embedding: nn.Module, lm_head: nn.Module) -> None:
        super().__init__()
        hidden, epsilon = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.embedding, self.lm_head = embedding, lm_head
        self.rotary = DeepseekV4RotaryEmbedding(config)
        self.e_proj = nn.Linear(hidden, hidden, bias=False)
        self.h_proj = nn.Linear(hidden, hidden, bias=False)
        self.enorm = DeepseekV4RMSNorm(hidden, eps=epsilon)
        self.hnorm = DeepseekV4RMSNorm(hidden, eps=epsilon)
        self.block = DeepseekV4DecoderLayer(config, 0)
        self.hc_head = DeepseekV4HyperHead(config)
        self.norm = DeepseekV4RMSNorm(hidden, eps=epsilon)

    @torch.no_grad()
    def nextn_forward(self, streams: Tensor, ids: list[int], positions: list[int]) -> tuple[Tensor, Tensor]:
        """streams [T, M, H], ids[i] the token after positions[i] -> logits [T, V], own streams [T, M, H]."""
        embedded = self.enorm(self.embedding(torch.tensor(ids)))  # [T, H]
        fused = self.e_proj(embedded)[:, None, :] + self.h_proj(self.hnorm(streams))  # [T, M, H]
        position_row = torch.tensor([positions])  # [1, T]
        angles = self.rotary(fused, position_ids=position_row, layer_type="main")
        own_streams = self.block(
            fused[None],
            input_ids=torch.tensor([ids]),
            position_embeddings={"main": angles},
            position_ids=position_row,
            attention_mask=self._window_mask(position_row[0]),
        )  # [1, T, M, H]
        logits = self.lm_head(self.norm(self.hc_head(own_streams)))  # [1, T, V]
        return logits[0], own_streams[0]

    def _window_mask(self, positions: Tensor) -> Tensor:
        """[1, 1, T, T] additive: position p sees max(0, p - window + 1) .. p."""
        distance = positions[:, None] - positions[None, :]  # [T, T]
        visible = (distance >= 0) & (distance < self.config.sliding_window)
        hidden = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))
        return hidden[None, None]


def load_nextn(folder: Path | str, target: HuggingFaceTarget) -> NextnTwin:
    """The NextN layer of the checkpoint in `folder`, sharing embedding and LM head with `target`."""
    config = copy.deepcopy(target.config)
    # Fixed here, not looked up: the NextN layer has no compressor and no hash routing in any release.
    config.num_hidden_layers = 1
    config.layer_types = ["sliding_attention"]
    config.mlp_layer_types = ["moe"]
    twin = NextnTwin(config, target.model.model.embed_tokens, target.model.lm_head)
    shared = {f"{name}.weight": getattr(twin, name).weight for name in ("embedding", "lm_head")}
    twin.load_state_dict({**_renamed(_read_nextn(folder), config.n_routed_experts), **shared}, strict=True)
    return twin.eval()


def _read_nextn(folder: Path | str) -> dict[str, Tensor]:
    with safe_open(Path(folder) / "model.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(PREFIX)]
        return {name.removeprefix(PREFIX): file.get_tensor(name).float() for name in names}


def _renamed(weights: dict[str, Tensor], experts: int) -> dict[str, Tensor]:
    """Release names to the names of `NextnTwin`'s parameters; expert matrices are stacked."""
    weights = dict(weights)
    stacked: dict[str, list[Tensor]] = {"gate_up_proj": [], "down_proj": []}
    for index in range(experts):
        gate, down, up = (weights.pop(f"ffn.experts.{index}.{name}.weight") for name in ("w1", "w2", "w3"))
        stacked["gate_up_proj"].append(torch.cat([gate, up]))
        stacked["down_proj"].append(down)
    renamed = {f"block.mlp.experts.{name}": torch.stack(parts) for name, parts in stacked.items()}
    for name, weight in weights.items():
        renamed[_twin_name(name)] = weight
    return renamed


def _twin_name(name: str) -> str:
    if name.startswith("hc_head_"):
        return name.replace("hc_head_", "hc_head.hc_")
    for pattern, replacement in _BLOCK_RENAMES:
        if re.match(pattern, name):
            return "block." + re.sub(pattern, replacement, name)
    return name
