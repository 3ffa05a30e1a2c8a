"""Detokenisers: text does not depend on how tokens arrive, and never shows half a character."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers

from nextn.runtime.contract.errors import ArtifactError, RequestError
from nextn.runtime.engine.text import (
    REPLACEMENT,
    ByteDetokenizer,
    Detokenizer,
    TokenBytes,
    Tokenizer,
    WindowDetokenizer,
)
from tests.runtime.echo_artifact import BOS, EOS, byte_level_tokenizer

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
SAMPLES = ["plain", "日本語と漢字", f"a {FAMILY} b", "Ünïcödé \u0301", "\u0000\n\t", "ends with €"]


RAW = byte_level_tokenizer()
TOKEN_BYTES = TokenBytes(RAW)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    RAW.save(str(file))
    return Tokenizer(file)


def deltas(detokenizer: Detokenizer, tokens: list[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


@pytest.mark.parametrize("sample", SAMPLES)
def test_streamed_text_equals_the_whole_and_shows_no_half_character(
    tokenizer: Tokenizer, sample: str
) -> None:
    """Multi-byte characters split over tokens (https://github.com/sgl-project/sglang/issues/31598)."""
    parts = deltas(tokenizer.detokenizer(), list(tokenizer.encode(sample)))
    assert "".join(parts) == sample
    assert not any(REPLACEMENT in part for part in parts)


@given(st.lists(st.integers(0, 259)))
def test_any_bytes_give_what_the_tokenizer_itself_decodes(tokens: list[int]) -> None:
    """Lone bytes, special tokens and ids beyond the tokenizer's vocabulary included."""
    parts = deltas(ByteDetokenizer(TOKEN_BYTES), tokens)
    assert "".join(parts) == RAW.decode(tokens, skip_special_tokens=True)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=3))
def test_only_a_cut_off_end_becomes_a_replacement_character(text: str, tail: bytes) -> None:
    tokens = [*text.encode(), *tail]
    parts = deltas(ByteDetokenizer(TOKEN_BYTES), tokens)
    assert "".join(parts) == bytes(tokens).decode("utf-8", "replace")


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert "".join(deltas(tokenizer.detokenizer(), [BOS, 65, EOS, 66])) == "AB"


def test_byte_fallback_vocabularies_join_bytes(tmp_path: Path) -> None:
    vocabulary = {"a": 0, "é": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    raw = RawTokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    raw.save(str(tmp_path / "tokenizer.json"))
    detokenizer = Tokenizer(tmp_path / "tokenizer.json").detokenizer()
    tokens = [0, *(2 + byte for byte in "漢".encode()), 1, 2 + 0xFF]
    assert "".join(deltas(detokenizer, tokens)) == f"a漢é{REPLACEMENT}"


def test_word_boundary_decoders_keep_their_spaces(tmp_path: Path) -> None:
    words = ["▁Hello", "▁wor", "ld", "▁", "!"]
    raw = RawTokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="!"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.save(str(tmp_path / "tokenizer.json"))
    detokenizer = Tokenizer(tmp_path / "tokenizer.json").detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    assert deltas(detokenizer, [0, 1, 2, 4]) == ["Hello", " wor", "ld", "!", ""]


def test_text_that_is_not_unicode_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="key prompt"):
        tokenizer.encode("\ud800")


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{")
    with pytest.raises(ArtifactError, match="not a tokenizer"):
        Tokenizer(file)
