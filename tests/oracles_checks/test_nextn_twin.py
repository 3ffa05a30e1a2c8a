"""The NextN reference: window, positions and what of its inputs matters."""

import pytest
import torch

ROWS = 30


@pytest.fixture(params=["tiny", "three_streams", "pro_like"])
def rows(request, oracle_of):
    """oracle, streams [T, M, H] of the target, ids and positions of T rows."""
    oracle = oracle_of(request.param)
    ids = list(oracle.prompt(ROWS + 1, seed=11))
    streams = oracle.target.forward(ids).streams[:-1]
    return oracle, streams, ids[1:], list(range(ROWS))


def test_is_a_plain_window_layer_whatever_the_target_starts_with(rows):
    oracle = rows[0]
    attention = oracle.nextn.block.self_attn
    assert attention.compressor is None
    assert attention.rope_layer_type == "main"
    assert not oracle.nextn.block.mlp.is_hash
    assert oracle.nextn.lm_head is oracle.target.model.lm_head
    assert oracle.nextn.embedding is oracle.target.model.model.embed_tokens


def test_last_row_needs_exactly_one_window_of_rows(rows):
    oracle, streams, ids, positions = rows
    whole, _ = oracle.nextn.nextn_forward(streams, ids, positions)
    window = oracle.config["sliding_window"]
    for count, exact in ((window, True), (window - 1, False)):
        tail, _ = oracle.nextn.nextn_forward(streams[-count:], ids[-count:], positions[-count:])
        difference = (tail[-1] - whole[-1]).abs().max().item()
        assert (difference < 1e-4) == exact, (count, difference)


def test_later_rows_change_nothing_before(rows):
    oracle, streams, ids, positions = rows
    whole, own = oracle.nextn.nextn_forward(streams, ids, positions)
    part, part_own = oracle.nextn.nextn_forward(streams[:10], ids[:10], positions[:10])
    torch.testing.assert_close(part, whole[:10], rtol=0, atol=1e-4)
    torch.testing.assert_close(part_own, own[:10], rtol=0, atol=1e-4)


def test_only_distances_between_positions_matter(rows):
    """The output is rotated back at the query's own position, so a common shift cancels."""
    oracle, streams, ids, positions = rows
    logits, _ = oracle.nextn.nextn_forward(streams, ids, positions)
    shifted, _ = oracle.nextn.nextn_forward(streams, ids, [position + 1000 for position in positions])
    torch.testing.assert_close(shifted, logits, rtol=0, atol=1e-3)
    spread, _ = oracle.nextn.nextn_forward(streams, ids, [2 * position for position in positions])
    assert (spread[-1] - logits[-1]).abs().max() > 1e-2


def test_wrong_alignment_shows(rows):
    """Mistakes a drafter is known for: each must move the logits far beyond any tolerance."""
    oracle, streams, ids, positions = rows
    logits, own = oracle.nextn.nextn_forward(streams, ids, positions)
    mistakes = {
        "streams one row late": (streams.roll(1, 0), ids),
        "streams after averaging": (streams.mean(1, keepdim=True).expand_as(streams), ids),
        "no streams": (torch.zeros_like(streams), ids),
        "own streams in place of the target's": (own, ids),
        "the token at i in place of i + 1": (streams, [*ids[-1:], *ids[:-1]]),
    }
    for name, (wrong_streams, wrong_ids) in mistakes.items():
        wrong, _ = oracle.nextn.nextn_forward(wrong_streams, wrong_ids, positions)
        assert (wrong - logits).abs().max() > 0.1, name
