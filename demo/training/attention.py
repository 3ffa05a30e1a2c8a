"""Sliding-window attention with compressed far context (C4 with an indexer, C128) in one softmax."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .fused import rms_norm, rotate
from .layers import ForwardOptions, Linear, RmsNorm
from .matmul import batched_product

MASKED = -1e30  # finite, so that a fully masked group gives zeros after the joint softmax instead of NaN
OVERLAPPING_RATIO = 4  # C4 entries also read the previous block and are chosen by an indexer
# Averaged evenly over 128 positions, every block gives nearly the same vector, and attention hardly learns to
# look there. So the channels of long blocks start with different reach, from the whole block down to its end.
STEEPEST_RECENCY = 8.0
INDEXER_WARM_POSITIONS = 8  # the first queries see fewer than three entries: nothing to distil


@dataclass
class DraftStep:
    """Where a NextN rollout step stands: step s queries position i + s - 1 for the row that began at i."""

    shift: int = 0  # s - 1
    first_rows: Tensor | None = None  # [batch, length, head_dim] keys of step 1, absent during step 1
    own_rows: list[Tensor] = field(default_factory=list)  # keys of steps 2 .. s-1, one per beginning row


class Compressor(nn.Module):
    """One key per `ratio` positions: a per-channel softmax pooling, then norm and rotary position."""

    def __init__(self, config: SimpleNamespace, ratio: int, width: int):
        super().__init__()
        self.ratio, self.width = ratio, width
        channels = width * (2 if ratio == OVERLAPPING_RATIO else 1)
        slopes = torch.rand(channels) * (0.0 if ratio == OVERLAPPING_RATIO else STEEPEST_RECENCY)
        self.ape = nn.Parameter(torch.linspace(-1, 0, ratio).unsqueeze(1) * slopes)
        self.wkv = Linear(config.hidden_size, channels)
        self.wgate = Linear(config.hidden_size, channels)
        self.norm = RmsNorm(width, config.rms_norm_eps)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """x [batch, length, hidden] -> [batch, length // ratio, width]; a partial block makes no entry."""
        blocks = x.shape[1] // self.ratio
        x = x[:, : blocks * self.ratio]
        values = self.wkv(x).unflatten(1, (blocks, self.ratio))  # [batch, blocks, ratio, channels]
        gates = self.wgate(x).unflatten(1, (blocks, self.ratio)) + self.ape
        if self.ratio == OVERLAPPING_RATIO:
            values, gates = self._overlap(values, 0.0), self._overlap(gates, MASKED)
        pooled = self.norm((values * gates.softmax(2)).sum(2)).unsqueeze(2)  # [batch, blocks, 1, width]
        return rotate(pooled, angles[:: self.ratio].contiguous()).squeeze(2)

    def _overlap(self, x: Tensor, before_first: float) -> Tensor:
        """First channel half of the previous block, second half of this one: [batch, blocks, 8, width]."""
        previous = F.pad(x[:, :-1, :, : self.width], (0, 0, 0, 0, 1, 0), value=before_first)
        return torch.cat([previous, x[..., self.width :]], 2)


class Indexer(nn.Module):
    """Scores C4 entries with its own narrow keys, so that attention reads only the best few."""

    def __init__(self, config: SimpleNamespace):
        super().__init__()
        self.heads, self.width = config.index_n_heads, config.index_head_dim
        self.wq_b = Linear(config.q_lora_rank, self.heads * self.width)
        self.weights_proj = Linear(config.hidden_size, self.heads)
        self.compressor = Compressor(config, OVERLAPPING_RATIO, self.width)

    def forward(self, x: Tensor, query_latent: Tensor, angles: Tensor) -> Tensor:
        """-> scores [batch, length, entries], not yet masked."""
        batch, length, _ = x.shape
        keys = self.compressor(x, angles)  # [batch, entries, width]
        queries = rotate(self.wq_b(query_latent).unflatten(-1, (self.heads, self.width)), angles)
        matches = F.relu(batched_product(queries.flatten(1, 2), keys.transpose(1, 2)), inplace=True)
        matches = matches.view(batch * length, self.heads, -1)  # [rows, heads, entries]
        weights = self.weights_proj(x) * (self.heads * self.width) ** -0.5
        return torch.bmm(weights.view(batch * length, 1, self.heads), matches).view(batch, length, -1)


class Attention(nn.Module):
    def __init__(self, config: SimpleNamespace, ratio: int):
        super().__init__()
        self.config, self.ratio = config, ratio
        hidden, heads, width = config.hidden_size, config.num_attention_heads, config.head_dim
        latent, eps = config.q_lora_rank, config.rms_norm_eps
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.wq_a, self.q_norm = Linear(hidden, latent), RmsNorm(latent, eps)
        self.wq_b = Linear(latent, heads * width)
        self.wkv, self.kv_norm = Linear(hidden, width), RmsNorm(width, eps)
        self.wo_a = Linear(heads * width // config.o_groups, config.o_groups * config.o_lora_rank)
        self.wo_b = Linear(config.o_groups * config.o_lora_rank, hidden, 0.35)
        if ratio:
            self.compressor = Compressor(config, ratio, width)
        if ratio == OVERLAPPING_RATIO:
            self.indexer = Indexer(config)

    def query(self, x: Tensor, angles: Tensor, shift: int) -> tuple[Tensor, Tensor]:
        """-> (latent [batch, length, q_lora], scaled queries [batch, length, heads, head_dim])."""
        latent = self.q_norm(self.wq_a(x))
        heads = self.wq_b(latent).unflatten(-1, (self.config.num_attention_heads, self.config.head_dim))
        heads = rotate(rms_norm(heads, None, self.config.rms_norm_eps), angles, shift)
        return latent, heads * self.config.head_dim**-0.5

    def key(self, x: Tensor, angles: Tensor, shift: int) -> Tensor:
        """[batch, length, head_dim], used as key and as value."""
        return rotate(self.kv_norm(self.wkv(x)).unsqueeze(2), angles, shift).squeeze(2)

    def project_out(self, mixed: Tensor, angles: Tensor, shift: int) -> Tensor:
        """mixed [batch, length, heads, head_dim] -> [batch, length, hidden]; undoes the values' rotation."""
        batch, length = mixed.shape[:2]
        groups, rank = self.config.o_groups, self.config.o_lora_rank
        mixed = rotate(mixed, angles, shift, -1.0).view(batch * length, groups, -1).transpose(0, 1)
        weight = self.wo_a.weight.view(groups, rank, -1)
        low_rank = batched_product(mixed, weight.transpose(1, 2)).transpose(0, 1)  # [rows, groups, rank]
        return self.wo_b(low_rank.reshape(batch, length, -1))

    def forward(
        self, x: Tensor, angles: Tensor, options: ForwardOptions, draft: DraftStep | None = None
    ) -> tuple[Tensor, Tensor]:
        """x [batch, length, hidden], length a multiple of the window -> (output like x, window keys)."""
        draft = draft or DraftStep()
        batch, length, _ = x.shape
        config = self.config
        heads, width, window = config.num_attention_heads, config.head_dim, config.sliding_window
        latent, queries = self.query(x, angles, draft.shift)
        keys = self.key(x, angles, draft.shift)
        own = [] if draft.first_rows is None else [*draft.own_rows, keys]
        pairs = _pair_blocks(keys if draft.first_rows is None else draft.first_rows, window)

        logits = [self._window_logits(queries, pairs, draft.shift)]  # [batch, length, heads, 2 * window]
        logits += [(queries * row.unsqueeze(2)).sum(-1, keepdim=True) for row in own]
        far_context = self.ratio > 0 and options.hidden_ratio != self.ratio
        if far_context:
            entries = self.compressor(x, angles)  # [batch, entries, head_dim]
            logits.append(self._entry_logits(x, latent, queries, entries, angles, options))
        logits.append(self.attn_sink.view(1, 1, heads, 1).expand(batch, length, heads, 1))
        weights = torch.cat(logits, -1).softmax(-1)

        near = weights[..., : 2 * window].reshape(len(pairs), window * heads, 2 * window)
        mixed = batched_product(near, pairs).view(batch, length, heads, width)
        used = 2 * window
        for row in own:
            mixed = mixed + weights[..., used : used + 1] * row.unsqueeze(2)
            used += 1
        if far_context:
            far = weights[..., used:-1].reshape(batch, length * heads, -1)
            mixed = mixed + batched_product(far, entries).view(batch, length, heads, width)
        return self.project_out(mixed, angles, draft.shift), keys

    def _window_logits(self, queries: Tensor, pairs: Tensor, shift: int) -> Tensor:
        batch, length, heads, width = queries.shape
        window = self.config.sliding_window
        blocks = length // window
        logits = batched_product(queries.view(batch * blocks, window * heads, width), pairs.transpose(1, 2))
        distance = torch.arange(window)[:, None] + window - torch.arange(2 * window)
        visible = (distance >= 0) & (distance < window - shift)  # a shifted query loses its oldest rows
        visible = visible.expand(blocks, window, 2 * window).clone()
        visible[0, :, :window] = False  # nothing precedes the first block
        bias = torch.zeros(visible.shape).masked_fill(~visible, MASKED)
        logits = logits.view(batch, blocks, window, heads, 2 * window) + bias[None, :, :, None]
        return logits.view(batch, length, heads, 2 * window)

    def _entry_logits(
        self,
        x: Tensor,
        latent: Tensor,
        queries: Tensor,
        entries: Tensor,
        angles: Tensor,
        options: ForwardOptions,
    ) -> Tensor:
        """Masked logits over compressed entries, [batch, length, heads, entries]."""
        batch, length, heads, width = queries.shape
        count = entries.shape[1]
        raw = batched_product(queries.view(batch, length * heads, width), entries.transpose(1, 2))
        raw = raw.view(batch, length, heads, count)
        complete = (torch.arange(length) + 1) // self.ratio  # entries visible to each query
        future = torch.arange(count) >= complete[:, None]
        bias = torch.zeros(1, length, count).masked_fill(future, MASKED)
        if self.ratio == OVERLAPPING_RATIO:
            bias = self._choose(x, latent, raw, bias, angles, options)
        return raw + bias.unsqueeze(2)

    def _choose(
        self, x: Tensor, latent: Tensor, raw: Tensor, bias: Tensor, angles: Tensor, options: ForwardOptions
    ) -> Tensor:
        """Keep the indexer's top entries; optionally record its loss against the dense attention."""
        count, wanted = bias.shape[-1], self.config.index_topk
        losses = options.indexer_losses
        if losses is None and (not options.sparse or count <= wanted):
            return bias
        with torch.set_grad_enabled(losses is not None and torch.is_grad_enabled()):
            # The language-model loss cannot reach the indexer through top-k; detaching stops the reverse too.
            scores = self.indexer(x.detach(), latent.detach(), angles) + bias
        if losses is not None:
            teacher = (raw.detach() + bias.unsqueeze(2)).softmax(-1).mean(2)  # [batch, length, entries]
            divergence = teacher * (teacher.clamp_min(1e-9).log() - scores.log_softmax(-1))
            losses.append(divergence[:, INDEXER_WARM_POSITIONS:].sum(-1).mean())
        if options.random_choice:
            scores = torch.rand(scores.shape, generator=options.generator) + bias
        if not options.sparse or count <= wanted:
            return bias
        chosen = scores.detach().topk(wanted, -1).indices
        return torch.minimum(torch.full_like(scores, MASKED).scatter_(-1, chosen, 0.0), bias)


def _pair_blocks(keys: Tensor, window: int) -> Tensor:
    """Each window-sized block next to its predecessor: [batch * blocks, 2 * window, head_dim]."""
    blocks = keys.unflatten(1, (-1, window))
    return torch.cat([F.pad(blocks[:, :-1], (0, 0, 0, 0, 1, 0)), blocks], 2).flatten(0, 1)
