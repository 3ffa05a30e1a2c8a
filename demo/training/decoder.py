"""Greedy text from the trunk, one position at a time for a whole batch, with caches."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import OVERLAPPING_RATIO, Attention, Compressor, Indexer
from .fused import rotate
from .layers import ForwardOptions, StreamMixer, mix_update
from .model import Block, DemoModel


class EntryCache:
    """Raw values and gates of every position, and the entries finished so far."""

    def __init__(self, compressor: Compressor, batch: int, capacity: int):
        self.compressor, self.count = compressor, 0
        channels = compressor.ape.shape[1]
        self.values = torch.zeros(batch, capacity, channels)
        self.gates = torch.zeros(batch, capacity, channels)
        self.entries = torch.zeros(batch, capacity // compressor.ratio, compressor.width)

    def push(self, x: Tensor, position: int, angles: Tensor) -> None:
        """x [batch, hidden]; completes an entry when `position` ends a block."""
        compressor, ratio, width = self.compressor, self.compressor.ratio, self.compressor.width
        self.values[:, position] = compressor.wkv(x)
        self.gates[:, position] = compressor.wgate(x) + compressor.ape[position % ratio]
        if (position + 1) % ratio:
            return
        first = position + 1 - ratio
        values, gates = self.values[:, first : position + 1], self.gates[:, first : position + 1]
        if ratio == OVERLAPPING_RATIO:
            values, gates = values[..., width:], gates[..., width:]
            if first:
                before = slice(first - ratio, first)
                values = torch.cat([self.values[:, before, :width], values], 1)  # [batch, 8, width]
                gates = torch.cat([self.gates[:, before, :width], gates], 1)
        pooled = compressor.norm((values * gates.softmax(1)).sum(1)).view(-1, 1, 1, width)
        self.entries[:, self.count] = rotate(pooled, angles, first).view(-1, width)
        self.count += 1

    def ready(self) -> Tensor:
        return self.entries[:, : self.count]


class LayerCache:
    def __init__(self, block: Block, batch: int, capacity: int):
        attention = block.attn
        self.keys = torch.zeros(batch, capacity, attention.config.head_dim)
        self.entries = EntryCache(attention.compressor, batch, capacity) if block.ratio else None
        indexed = block.ratio == OVERLAPPING_RATIO
        self.index = EntryCache(attention.indexer.compressor, batch, capacity) if indexed else None


class Decoder:
    def __init__(self, model: DemoModel, batch: int, capacity: int):
        self.model, self.options = model, ForwardOptions()
        self.caches = [LayerCache(block, batch, capacity) for block in model.blocks()]

    @torch.no_grad()
    def step(self, ids: Tensor, position: int) -> Tensor:
        """ids [batch] at `position` -> logits [batch, vocab]."""
        model = self.model
        streams = model.expand(ids)
        for block, cache in zip(model.blocks(), self.caches, strict=True):
            x, write, mix = StreamMixer.read(block, "attn", model.config, streams)
            update = self._attend(block.attn, block.attn_norm(x), position, model.angles(block.ratio), cache)
            streams = mix_update(update, streams, write, mix)
            streams = block.feed_forward(streams, ids, self.options)
        return model.read_logits(streams)

    def _attend(
        self, attention: Attention, x: Tensor, position: int, angles: Tensor, cache: LayerCache
    ) -> Tensor:
        """x [batch, hidden] -> [batch, hidden]."""
        config = attention.config
        # queries [batch, 1, heads, head_dim]
        latent, queries = attention.query(x.unsqueeze(1), angles, position)
        cache.keys[:, position] = attention.key(x.unsqueeze(1), angles, position).squeeze(1)
        keys = cache.keys[:, max(0, position + 1 - config.sliding_window) : position + 1]
        if cache.entries:
            cache.entries.push(x, position, angles)
            entries = cache.entries.ready()
            if cache.index:
                cache.index.push(x, position, angles)
                index_keys = cache.index.ready()
                entries = self._choose(attention.indexer, x, latent, position, angles, entries, index_keys)
            keys = torch.cat([keys, entries], 1)  # [batch, seen, head_dim]
        logits = torch.bmm(queries.squeeze(1), keys.transpose(1, 2))  # [batch, heads, seen]
        sinks = attention.attn_sink.view(1, -1, 1).expand(len(x), -1, 1)
        weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        return attention.project_out(torch.bmm(weights, keys).unsqueeze(1), angles, position).squeeze(1)

    def _choose(
        self,
        indexer: Indexer,
        x: Tensor,
        latent: Tensor,
        position: int,
        angles: Tensor,
        entries: Tensor,
        index_keys: Tensor,
    ) -> Tensor:
        """The indexer's best entries, [batch, index_topk, head_dim]; all of them while they are few."""
        wanted = self.model.config.index_topk
        if entries.shape[1] <= wanted:
            return entries
        queries = indexer.wq_b(latent).unflatten(-1, (indexer.heads, indexer.width))
        queries = rotate(queries, angles, position).squeeze(1)  # [batch, heads, width]
        matches = F.relu(torch.bmm(queries, index_keys.transpose(1, 2)))  # [batch, heads, entries]
        scores = torch.bmm(indexer.weights_proj(x).unsqueeze(1), matches).squeeze(1)
        chosen = scores.topk(wanted, -1).indices.unsqueeze(-1)
        return entries.gather(1, chosen.expand(-1, -1, entries.shape[-1]))


def generate(model: DemoModel, prompts: Tensor, new: int) -> Tensor:
    """Greedy continuation: prompts [batch, length] -> [batch, length + new]."""
    batch, length = prompts.shape
    decoder = Decoder(model, batch, length + new)
    text = torch.cat([prompts, prompts.new_zeros(batch, new)], 1)
    for position in range(length + new - 1):
        logits = decoder.step(text[:, position], position)
        if position >= length - 1:
            text[:, position + 1] = logits.argmax(-1)
    return text
