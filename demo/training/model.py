"""The DeepSeek-V4-shaped trunk and its NextN draft layer; parameter names follow the original release."""

from types import SimpleNamespace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attention, DraftStep
from .config import PAD, model_config
from .layers import (
    ForwardOptions,
    HeadMixed,
    Linear,
    MixtureOfExperts,
    RmsNorm,
    StreamMixer,
    attach_head_mixer,
    mix_update,
    read_head,
    rotary_table,
)


class Block(nn.Module):
    def __init__(self, config: SimpleNamespace, index: int, ratio: int, hashed: bool):
        super().__init__()
        self.config, self.ratio = config, ratio
        self.attn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config, ratio)
        self.ffn = MixtureOfExperts(config, hashed)
        StreamMixer.attach(self, "attn", config, 2 * index)
        StreamMixer.attach(self, "ffn", config, 2 * index + 1)

    def forward(
        self,
        streams: Tensor,
        ids: Tensor,
        angles: Tensor,
        options: ForwardOptions,
        draft: DraftStep | None = None,
    ) -> tuple[Tensor, Tensor]:
        """streams [batch * length, 4, hidden], ids [batch, length] -> (streams, window keys)."""
        x, write, mix = StreamMixer.read(self, "attn", self.config, streams)
        update, keys = self.attn(self.attn_norm(x).view(*ids.shape, -1), angles, options, draft)
        streams = mix_update(update.flatten(0, 1), streams, write, mix)
        return self.feed_forward(streams, ids.flatten(), options), keys

    def feed_forward(self, streams: Tensor, ids: Tensor, options: ForwardOptions) -> Tensor:
        x, write, mix = StreamMixer.read(self, "ffn", self.config, streams)
        return mix_update(self.ffn(self.ffn_norm(x), ids, options), streams, write, mix)


class NextN(Block, HeadMixed):
    """One score-routed sliding-window block over fused (hidden streams, next token) rows."""

    def __init__(self, config: SimpleNamespace):
        super().__init__(config, 0, 0, hashed=False)
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.e_proj, self.h_proj = Linear(hidden, hidden), Linear(hidden, hidden)
        self.enorm, self.hnorm, self.norm = (RmsNorm(hidden, eps) for _ in range(3))
        attach_head_mixer(self, config)

    def fuse(self, embedded: Tensor, streams: Tensor) -> Tensor:
        """Token i+1 embedded [rows, hidden] and streams of position i [rows, 4, hidden] -> like streams."""
        return self.h_proj(self.hnorm(streams)) + self.e_proj(self.enorm(embedded)).unsqueeze(1)


class DemoModel(HeadMixed):
    def __init__(self) -> None:
        super().__init__()
        config = self.config = model_config()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed.weight.data.normal_(0, 0.5)
        self.layers = nn.ModuleList(
            Block(config, index, config.compress_ratios[index], index < config.num_hash_layers)
            for index in range(config.num_hidden_layers)
        )
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        attach_head_mixer(self, config)
        self.head = Linear(config.hidden_size, config.vocab_size, 0.35)
        self.mtp = nn.ModuleList([NextN(config)])
        self.plain_angles = rotary_table(config, compressed=False)
        self.compressed_angles = rotary_table(config, compressed=True)

    def blocks(self) -> list[Block]:
        return cast(list[Block], list(self.layers))

    def draft_layer(self) -> NextN:
        return cast(NextN, self.mtp[0])

    def angles(self, ratio: int) -> Tensor:
        return self.compressed_angles if ratio else self.plain_angles

    def expand(self, ids: Tensor) -> Tensor:
        """ids [rows] -> four equal streams [rows, 4, hidden]."""
        return self.embed(ids).unsqueeze(1).expand(-1, self.config.hc_mult, -1).contiguous()

    def trunk(self, ids: Tensor, options: ForwardOptions) -> tuple[Tensor, Tensor]:
        """ids [batch, length] -> (streams [batch * length, 4, hidden], logits [batch, length, vocab])."""
        length = ids.shape[1]
        streams = self.expand(ids.flatten())
        hashed = ids if options.hash_ids is None else options.hash_ids
        for block in self.blocks():
            streams, _ = block(streams, hashed, self.angles(block.ratio)[:length].contiguous(), options)
        return streams, self.read_logits(streams).view(*ids.shape, -1)

    def read_logits(self, streams: Tensor) -> Tensor:
        return F.linear(self.norm(read_head(self, self.config, streams)), self.head.weight)

    def drafts(
        self, ids: Tensor, streams: Tensor, steps: int, options: ForwardOptions, own_tokens: bool = False
    ) -> list[Tensor]:
        """Roll the draft layer out from every row at once.

        Entry s-1 of the result, [batch, length, vocab], predicts token i+1+s at row i. Step 1 fuses the
        trunk's streams of row i with token i+1. Later steps fuse the draft's own streams with token i+s (from
        the text, or with `own_tokens` the draft's own choice) at position i+s-1, and see step-1 rows up to
        i and their own. Serving computes the same, because every round overwrites the rows before it with
        rows made from the trunk's streams.
        """
        step = DraftStep()
        predictions: list[Tensor] = []
        for number in range(1, steps + 1):
            if number == 1 or not own_tokens:
                tokens = F.pad(ids[:, number:], (0, number), value=PAD)  # [batch, length]
            else:
                tokens = predictions[-1].detach().argmax(-1)
            streams, keys, logits = self.draft_rows(tokens, streams, options, step)
            predictions.append(logits)
            if number == 1:
                step = DraftStep(1, keys, [])
            else:
                step = DraftStep(number, step.first_rows, [*step.own_rows, keys])
        return predictions

    def draft_rows(
        self, tokens: Tensor, streams: Tensor, options: ForwardOptions, step: DraftStep
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One draft step of every row: tokens [batch, length], streams [batch * length, 4, hidden].

        Returns the draft's own streams, its window keys and its logits [batch, length, vocab].
        """
        layer = self.draft_layer()
        fused = layer.fuse(self.embed(tokens.flatten()), streams)
        streams, keys = layer(fused, tokens, self.plain_angles, options, step)
        hidden = layer.norm(read_head(layer, self.config, streams))
        return streams, keys, F.linear(hidden, self.head.weight).view(*tokens.shape, -1)

    def routers(self) -> list[MixtureOfExperts]:
        """Score-routed mixtures, whose gate bias is balanced during training."""
        blocks = [*self.blocks(), self.draft_layer()]
        return [block.ffn for block in blocks if not block.ffn.gate.hashed]


def round_to_release(model: nn.Module) -> nn.Module:
    """Round in place what the release stores as bf16; stream mixers, sinks, ape and gate biases stay fp32."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not kept_in_float32(name):
                parameter.copy_(parameter.bfloat16())
    return model


def kept_in_float32(name: str) -> bool:
    last = name.rsplit(".", 1)[-1]
    return last.startswith("hc_") or last in ("attn_sink", "ape") or name.endswith("gate.bias")
