"""Each fused op against the plain operators of the same operator of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from nextn.compile.targets.ascend.fused_ops import FUSED_OPS
from nextn.compile.targets.fused_op import FusedOp
from nextn.graphs.ops.operator import OPERATORS, short_name
from tests.npu.described_operators import run_on_cpu

PLAIN = {short_name(operator): plain for operator, plain in OPERATORS.items()}

BF16 = torch.bfloat16

Arguments = tuple[Any, ...]


class Draw:
    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        return (scale * torch.randn(*shape, generator=self._generator)).to(dtype)

    def below(self, limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, shape, generator=self._generator)

    def distinct(self, rows: int, limit: int, count: int) -> Tensor:
        return torch.rand(rows, limit, generator=self._generator).argsort(1)[:, :count]

    def int8_rows(self, *shape: int) -> tuple[Tensor, Tensor]:
        scales = 0.01 * torch.rand(*shape[:-1], 1, generator=self._generator)
        return (self.below(256, *shape) - 128).to(torch.int8), scales


def unit_rms(draw: Draw) -> Iterator[Arguments]:
    yield draw.normal(3, 5), 1e-6
    yield draw.normal(1, 2, 8, dtype=BF16), 1e-5
    yield torch.zeros(2, 4), 1e-6
    yield draw.normal(2, 64, scale=1e4), 1e-6


def rms_norm(draw: Draw) -> Iterator[Arguments]:
    for x, eps in unit_rms(draw):
        for dtype in (torch.float32, BF16):
            yield x, draw.normal(x.shape[-1]), eps, dtype


def apply_rope(draw: Draw) -> Iterator[Arguments]:
    for rows, heads, width, turning in ((5, 3, 12, 4), (1, 1, 8, 8), (7, 2, 64, 2)):
        angle = 30 * draw.normal(rows, turning // 2)
        cos, sin = torch.cos(angle), torch.sin(angle)
        yield draw.normal(rows, heads, width), cos[:, None], sin[:, None]
        yield draw.normal(rows, width, dtype=BF16), cos, -sin
        yield draw.normal(1, rows, width), cos[None], sin[None]


def score_route(draw: Draw) -> Iterator[Arguments]:
    for rows, experts, k in ((4, 6, 2), (1, 3, 3), (9, 256, 6)):
        yield 5 * draw.normal(rows, experts), draw.normal(experts), k, True, 1.5
    # Scores whose softplus a plain log1p(exp) loses.
    yield draw.normal(3, 8) - 20.0, torch.zeros(8), 3, True, 2.5


def hash_route(draw: Draw) -> Iterator[Arguments]:
    for logits, _, k, normalise, scale in score_route(draw):
        table = draw.distinct(11, logits.shape[1], k)
        yield logits, draw.below(11, len(logits)), table, normalise, scale


def clamped_swiglu(draw: Draw) -> Iterator[Arguments]:
    yield 3 * draw.normal(4, 10), 2.0
    yield draw.normal(2, 3, 6, dtype=BF16), 10.0


def routed_experts(draw: Draw, dtype: torch.dtype = torch.float32) -> Iterator[Arguments]:
    # One row, fewer and more pairs than experts, an expert for all rows, experts without rows.
    for rows, experts, chosen in ((1, 4, 1), (2, 9, 3), (8, 5, 2), (6, 3, 3)):
        index = draw.distinct(rows, experts, chosen)
        gate_up, down = draw.normal(experts, 10, 12), draw.normal(experts, 12, 5)
        route = draw.normal(rows, chosen).abs()
        yield draw.normal(rows, 12, dtype=dtype), index, route, gate_up.to(dtype), down.to(dtype), 1.5


def routed_int8_experts(draw: Draw) -> Iterator[Arguments]:
    for x, index, route, gate_up, down, limit in routed_experts(draw, BF16):
        x[0] = 0.0
        coded = (*draw.int8_rows(*gate_up.shape), *draw.int8_rows(*down.shape))
        yield x, index, route, *coded, limit, BF16


def int8_linear(draw: Draw) -> Iterator[Arguments]:
    for rows, inner, out in ((1, 8, 3), (5, 3000, 4), (2, 16, 16)):
        yield draw.normal(rows, inner), *draw.int8_rows(out, inner), BF16
        yield draw.normal(2, rows, inner, dtype=BF16), *draw.int8_rows(out, inner), BF16
    yield torch.zeros(2, 8), *draw.int8_rows(3, 8), BF16


def hyper_pre(draw: Draw, width: int = 128) -> Iterator[Arguments]:
    for rows in (1, 5):
        streams = draw.normal(rows, 4, width, dtype=BF16)
        fn = draw.normal(24, 4 * width, scale=(4 * width) ** -0.5)
        yield streams, fn, 1 + 0.2 * draw.normal(3), draw.normal(24), 1e-6, 1e-6, 20


def hyper_post(draw: Draw, width: int = 128) -> Iterator[Arguments]:
    comb = draw.normal(3, 4, 4).softmax(1)
    yield draw.normal(3, width), draw.normal(3, 4, width, dtype=BF16), draw.normal(3, 4), comb
    yield draw.normal(3, width, dtype=BF16), draw.normal(3, 4, width, dtype=BF16), draw.normal(3, 4), comb


def sinkhorn(draw: Draw) -> Iterator[Arguments]:
    yield 2 * draw.normal(5, 4, 4), 20, 1e-6
    yield 9 * draw.normal(1, 4, 4), 1, 1e-6


def window_attention(draw: Draw) -> Iterator[Arguments]:
    """At the beginning, on both sides of a block's end, past the window; one and several rows, padding."""

    def of(
        start: list[int],
        count: list[int],
        ratio: int,
        capacity: int,
        chosen: int = 0,
        heads: int = 64,
        rows: int = 0,
    ) -> Arguments:
        batch, rows = len(start), max(rows, *count)
        query = draw.normal(batch, rows, heads, 512, dtype=BF16).float()
        keys = draw.normal(batch, 127 + rows, 512, dtype=BF16)
        given = (query, keys, torch.tensor(start), torch.tensor(count), draw.normal(heads))
        if ratio == 0:
            return *given, None, None, None, 0, 0
        slots = torch.arange(batch).flip(0)
        entries = draw.normal((batch + 1) * capacity, 512, dtype=BF16)
        for slot, first, real in zip(slots.tolist(), start, count, strict=True):
            entries[slot * capacity + (first + real) // ratio : (slot + 1) * capacity] = torch.nan
        position = given[2][:, None] + torch.arange(rows) + 1
        seen = (torch.minimum(position, (given[2] + given[3])[:, None]) // ratio).flatten().tolist()
        numbers = [choice(draw, count, capacity, chosen) for count in seen] if chosen else None
        chosen_entries = None if numbers is None else torch.stack(numbers).view(batch, rows, chosen)
        return *given, entries, slots, chosen_entries, ratio, capacity

    yield of([0, 126], [1, 1], 0, 0)
    yield of([0, 127, 1000], [4, 4, 4], 0, 0)
    yield of([2], [150], 0, 0)
    yield of([500, 125], [4, 4], 128, 16, heads=128)
    yield of([0, 509], [3, 4], 4, 208)
    yield of([2045, 2300], [4, 2], 4, 640, 512)
    # A last chunk whose padding goes past the end of the last slot, and of its entries.
    yield of([2040, 2000], [4, 40], 128, 16, rows=300)


def choice(draw: Draw, seen: int, capacity: int, count: int) -> Tensor:
    """`count` of `capacity` entries: those of the first `seen` before others, each in any order."""
    order = draw.distinct(1, capacity, capacity)[0]
    return torch.cat([order[order < seen], order[order >= seen]])[:count]


def compress(draw: Draw) -> Iterator[Arguments]:
    """Windows that complete no, one and several blocks, from any place in a block, near the beginning."""
    for width, ratio, overlap in ((512, 4, 2), (128, 4, 2), (512, 128, 1)):
        channels, span = overlap * width, overlap * ratio
        for start, count, rows in (([0, 2], [1, 1], 1), ([3, 6], [5, 3], 5), ([127, 1023], [4, 4], 4)):
            blocks = -(-rows // ratio)
            angle = 30 * draw.normal(len(start), blocks, 32)
            yield (
                draw.normal(len(start), rows, 1024, dtype=BF16),
                draw.normal(2 * channels, 1024, scale=1 / 32, dtype=BF16).float(),
                draw.normal(ratio, channels),
                draw.normal(width, dtype=BF16).float(),
                draw.normal(len(start), span - 1, 2 * channels),
                torch.tensor(start),
                torch.tensor(count),
                torch.cos(angle),
                torch.sin(angle),
                ratio,
                1e-6,
            )


def indexer_topk(draw: Draw) -> Iterator[Arguments]:
    """Rows that see none, fewer than are chosen, as many, and more."""
    for batch, rows, complete, topk, capacity in (
        (2, 2, [[0, 1], [2, 3]], 3, 16),
        (1, 3, [[20, 21, 64]], 5, 64),
        (1, 1, [[600]], 512, 640),
    ):
        yield (
            draw.normal(batch, rows, 64, 128, dtype=BF16).float(),
            draw.normal(batch, rows, 64, dtype=BF16).float(),
            draw.normal((batch + 1) * capacity, 128, dtype=BF16),
            torch.arange(batch).flip(0),
            torch.tensor(complete),
            topk,
            capacity,
        )


CASES: dict[str, Callable[[Draw], Iterator[Arguments]]] = {
    "unit_rms": unit_rms,
    "rms_norm": rms_norm,
    "apply_rope": apply_rope,
    "score_route": score_route,
    "hash_route": hash_route,
    "clamped_swiglu": clamped_swiglu,
    "routed_experts": routed_experts,
    "routed_int8_experts": routed_int8_experts,
    "int8_linear": int8_linear,
    "hyper_pre": hyper_pre,
    "hyper_post": hyper_post,
    "sinkhorn": sinkhorn,
    "window_attention": window_attention,
    "compress": compress,
    "indexer_topk": indexer_topk,
}

STEP = {torch.float64: 1e-6, torch.float32: 1e-6, BF16: 2.0**-7}
"""What results may differ by, to their largest: last bits of float32, one step of bfloat16."""

ROUNDED = ("npu_sparse_attn_sharedkv", "npu_compressor")
"""Forms whose results come in bfloat16 and are widened."""

RELEASE_WIDTH = 4096
"""The narrowest that the operator package takes."""


def cases(fused: FusedOp) -> list[Arguments]:
    draw = Draw(seed=len(fused.name))
    if fused.name in ("npu_hc_pre", "npu_hc_post"):
        return list(CASES[fused.operator](draw, RELEASE_WIDTH))  # type: ignore[call-arg]
    return list(CASES[fused.operator](draw))


def tensors(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def by_expert(index: Tensor, weight: Tensor) -> Tensor:
    """Sorted, for neither promises an order."""
    order = index.argsort(1)
    return torch.stack([index.gather(1, order).double(), weight.gather(1, order).double()])


def seen(number: Tensor, complete: Tensor) -> Tensor:
    """The chosen entries of each row that it sees, sorted; -1 for those hidden from it."""
    return torch.where(number < complete[..., None], number, -1).sort(-1).values


def comparable(fused: FusedOp, arguments: Arguments, results: list[Tensor]) -> list[Tensor]:
    """What the fused op and the plain operators agree on."""
    if fused.operator.startswith("route_"):
        return [by_expert(*results)]
    if fused.operator == "indexer_topk":
        return [seen(results[0], arguments[4])]
    if fused.operator == "compress":
        start, count, ratio = arguments[5], arguments[6], arguments[9]
        own, entries = results
        real = torch.arange(own.shape[1]) < count[:, None]
        block = start[:, None] // ratio + torch.arange(entries.shape[1])
        complete = (block + 1) * ratio <= (start + count)[:, None]
        return [own[real], entries[complete]]
    if fused.operator == "window_attention":
        assert bool(torch.isfinite(results[0]).all()), "also of padding"
        return [results[0][torch.arange(results[0].shape[1]) < arguments[3][:, None]]]
    return results


def difference(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def allowed(fused: FusedOp, expected: Tensor) -> float:
    if not expected.is_floating_point():
        return 0.0
    step = STEP[BF16] if fused.name in ROUNDED else STEP[expected.dtype]
    return step * max(1.0, float(expected.abs().max())) if expected.numel() else 0.0


@pytest.mark.parametrize("fused", FUSED_OPS, ids=lambda fused: f"{fused.operator}-{fused.name}")
def test_a_fused_op_is_the_plain_operators(fused: FusedOp) -> None:
    run_on_cpu()
    for arguments in cases(fused):
        assert fused.fault(*arguments) is None
        with torch.no_grad():
            found, expected = tensors(fused.build(*arguments)), tensors(PLAIN[fused.operator](*arguments))
        assert [(one.dtype, one.shape) for one in found] == [(one.dtype, one.shape) for one in expected]
        found, expected = comparable(fused, arguments, found), comparable(fused, arguments, expected)
        for one, other in zip(found, expected, strict=True):
            assert difference(one, other) <= allowed(fused, other), fused


@pytest.mark.parametrize("fused", FUSED_OPS, ids=lambda fused: f"{fused.operator}-{fused.name}")
def test_a_fused_op_of_other_values_is_noticed(fused: FusedOp) -> None:
    """The comparison above can fail: floats of every argument a little larger."""
    run_on_cpu()

    def other_value(one: Any) -> Any:
        if not isinstance(one, Tensor) or not one.is_floating_point():
            return one
        # A choice is the same whatever the scale of its scores.
        return one.roll(1, 0) if fused.operator == "indexer_topk" else one * 1.02

    noticed = 0
    for arguments in cases(fused):
        found = comparable(fused, arguments, tensors(fused.build(*map(other_value, arguments))))
        expected = comparable(fused, arguments, tensors(PLAIN[fused.operator](*arguments)))
        for one, other in zip(found, expected, strict=True):
            noticed += difference(one, other) > allowed(fused, other)
    assert noticed, fused
