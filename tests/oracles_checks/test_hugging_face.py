"""The target reference: all weights arrive, and what it computes is causal, windowed and rightly rotated."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.oracles.case_oracle import make_oracle
from tests.oracles.synthetic import CASES


def _checksum(tensors: list[Tensor]) -> tuple[int, float]:
    """Element count and sum of squares: the same however matrices are renamed, stacked or joined."""
    return sum(one.numel() for one in tensors), sum(one.double().square().sum().item() for one in tensors)


@pytest.mark.parametrize("name", CASES)
def test_every_weight_arrives_in_target_or_nextn(oracle_of, name):
    oracle = oracle_of(name)
    stored = load_file(oracle.folder / "model.safetensors")
    nextn = [weight for key, weight in stored.items() if key.startswith("mtp.")]
    target = [weight for key, weight in stored.items() if not key.startswith("mtp.")]
    loaded_nextn = [
        weight
        for key, weight in oracle.nextn.state_dict().items()
        if not key.startswith(("embedding.", "lm_head."))
    ]
    loaded_target = list(oracle.target.model.state_dict().values())
    assert _checksum(loaded_target) == pytest.approx(_checksum(target), rel=1e-12)
    assert _checksum(loaded_nextn) == pytest.approx(_checksum(nextn), rel=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_architecture_reaches_transformers(oracle_of, name):
    """The release's spelling must not fall back to transformers' defaults unnoticed."""
    oracle = oracle_of(name)
    config, loaded = oracle.config, oracle.target.config
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    assert loaded.layer_types == [kinds[ratio] for ratio in config["compress_ratios"][:-1]]
    hashed = min(config["num_hash_layers"], config["num_hidden_layers"])
    assert loaded.mlp_layer_types[:hashed] == ["hash_moe"] * hashed
    assert "hash_moe" not in loaded.mlp_layer_types[hashed:]
    for key in (
        "hc_mult",
        "sliding_window",
        "index_topk",
        "swiglu_limit",
        "o_groups",
        "routed_scaling_factor",
    ):
        assert getattr(loaded, key) == config[key], key
    assert loaded.pad_token_id is None


@pytest.mark.parametrize("name", ["tiny", "three_streams", "release_window"])
def test_rotation_tables(oracle_of, name):
    """Window-only layers rotate plainly with base 10000, compressed ones with YaRN and base 160000."""
    oracle = oracle_of(name)
    config, rotary = oracle.config, oracle.target.model.model.rotary_emb
    width, scaling = config["qk_rope_head_dim"], config["rope_scaling"]
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width  # [width / 2]
    torch.testing.assert_close(rotary.main_inv_freq.double(), 10000.0**-exponents, rtol=1e-6, atol=0)

    plain = 160000.0**-exponents
    original = scaling["original_max_position_embeddings"]

    def boundary(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(160000.0))

    low = max(math.floor(boundary(scaling["beta_fast"])), 0)
    high = min(math.ceil(boundary(scaling["beta_slow"])), width - 1)
    kept = 1 - ((torch.arange(width // 2) - low) / (high - low)).clamp(0, 1)
    expected = plain / scaling["factor"] * (1 - kept) + plain * kept
    torch.testing.assert_close(rotary.compress_inv_freq.double(), expected, rtol=1e-6, atol=0)
    assert rotary.compress_attention_scaling == 1.0


@pytest.mark.parametrize("name", ["tiny", "three_streams", "pro_like", "narrow_index"])
def test_later_tokens_change_nothing_before(oracle_of, name):
    """Also the base of speculation: rows of a long forward equal rows of any shorter one."""
    oracle = oracle_of(name)
    ids = list(oracle.prompt(150, seed=3))
    whole = oracle.target.forward(ids)
    for length in (1, 2, 3, 4, 5, 127, 128, 129, 149):
        part = oracle.target.forward(ids[:length])
        torch.testing.assert_close(part.logits[-1], whole.logits[length - 1], rtol=0, atol=1e-4)
        torch.testing.assert_close(part.streams[-1], whole.streams[length - 1], rtol=0, atol=1e-4)


def test_one_window_layer_sees_exactly_its_window(oracle_of):
    """With two window-only layers a row reaches back 2 * (window - 1) positions and no further."""
    oracle = oracle_of("window_only")
    reach = 2 * (oracle.config["sliding_window"] - 1)
    ids = list(oracle.prompt(40, seed=4))
    base = oracle.target.target_logits(ids)[-1]
    for distance, visible in ((reach, True), (reach + 1, False), (0, True)):
        changed = list(ids)
        changed[-1 - distance] = (changed[-1 - distance] + 1) % oracle.config["vocab_size"]
        moved = (oracle.target.target_logits(changed)[-1] - base).abs().max().item()
        assert (moved > 1e-6) == visible, distance


def test_compressed_layers_see_beyond_the_window(oracle_of):
    oracle = oracle_of("tiny")
    ids = list(oracle.prompt(60, seed=5))
    changed = [(ids[0] + 1) % oracle.config["vocab_size"], *ids[1:]]
    difference = oracle.target.target_logits(ids)[-1] - oracle.target.target_logits(changed)[-1]
    assert difference.abs().max() > 1e-3


def test_streams_are_those_before_the_stream_head(oracle_of):
    oracle = oracle_of("tiny")
    rows = oracle.target.forward(list(oracle.prompt(20, seed=6)))
    assert rows.streams.shape == (20, oracle.config["hc_mult"], oracle.config["hidden_size"])
    inner = oracle.target.model.model
    with torch.no_grad():
        logits = oracle.target.model.lm_head(inner.norm(inner.hc_head(rows.streams[None])))[0]
    torch.testing.assert_close(logits, rows.logits)


@pytest.mark.parametrize("name", CASES)
def test_logits_have_room_between_the_best_two(oracle_of, name):
    """Token comparisons mean something only where ties are rare and no single token always wins."""
    oracle = oracle_of(name)
    logits = oracle.target.target_logits(list(oracle.prompt(200, seed=7)))
    best, second = logits.topk(2).values.unbind(-1)
    assert 6 < best.mean() < 16
    assert (best - second).median() > 0.5
    assert ((best - second) < 1e-3).float().mean() < 0.02
    assert logits.argmax(-1).unique().numel() > 50


def test_bfloat16_checkpoint_loads_its_rounded_values(tmp_path):
    oracle = make_oracle(tmp_path, "window_only", dtype=torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["layers.0.attn.wq_a.weight"].dtype == torch.bfloat16
    assert stored["layers.0.hc_attn_fn"].dtype == torch.float32
    assert stored["layers.0.attn.attn_sink"].dtype == torch.float32
    assert stored["layers.0.ffn.gate.tid2eid"].dtype == torch.int64
    embedding = oracle.target.model.model.embed_tokens.weight
    assert embedding.dtype == torch.float32
    assert torch.equal(embedding, stored["embed.weight"].float())
