"""What a `tokenizer.json` may store beside its vocabulary, against Hugging Face and the plain text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from nextn.runtime.engine.text import Tokenizer
from tests.runtime.echo_artifact import byte_level_tokenizer

TEXT = "def main(arguments):"

FALLBACK_WORDS = ["a", "é", "▁b", "<s>"]
FIRST_BYTE = len(FALLBACK_WORDS)


def saved(raw: RawTokenizer, folder: Path) -> Tokenizer:
    raw.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json")


def streamed(tokenizer: Tokenizer, tokens: list[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join([*(detokenizer.push(token) for token in tokens), detokenizer.flush()])


def truncates(raw: RawTokenizer) -> None:
    raw.enable_truncation(max_length=8)


def pads_to_a_length(raw: RawTokenizer) -> None:
    raw.enable_padding(length=64, pad_id=0, pad_token="!")


def pads_to_a_multiple(raw: RawTokenizer) -> None:
    raw.enable_padding(pad_to_multiple_of=16, pad_id=0, pad_token="!")


@pytest.mark.parametrize("store", [truncates, pads_to_a_length, pads_to_a_multiple])
def test_stored_truncation_and_padding_do_not_act_on_prompts(
    tmp_path: Path, store: Callable[[RawTokenizer], None]
) -> None:
    """https://github.com/ai-dynamo/dynamo/issues/11792: a prompt is encoded whole, and nothing is added."""
    raw = byte_level_tokenizer()
    store(raw)
    tokenizer = saved(raw, tmp_path)
    library = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert list(tokenizer.encode(TEXT)) == library(TEXT)["input_ids"] == list(TEXT.encode())


def test_stored_dropout_does_not_make_prompts_random(tmp_path: Path) -> None:
    """`dropout` skips merges at random, which is for training: the same prompt gives the same ids."""
    vocabulary = {"a": 0, "b": 1, "ab": 2}
    raw = RawTokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")], dropout=1.0))
    assert saved(raw, tmp_path).encode("abab") == (2, 2)


@pytest.mark.parametrize("content", ["đem", "café", "Ä"])
@pytest.mark.parametrize("in_sequence", [False, True])
def test_added_tokens_are_text_and_no_bytes(tmp_path: Path, content: str, in_sequence: bool) -> None:
    """https://github.com/huggingface/tokenizers/issues/1392: letters of an added token, which the byte-level
    alphabet has too, stand for themselves (also issues 1915 and 1996)."""
    raw = byte_level_tokenizer()
    if in_sequence:
        raw.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    raw.add_tokens([AddedToken(content, normalized=False)])
    tokenizer = saved(raw, tmp_path)
    tokens = list(tokenizer.encode(f"a{content}é"))
    assert len(tokens) == 4, "one for the added token"
    assert streamed(tokenizer, tokens) == f"a{content}é"


def byte_fallback_tokenizer(*, words: bool) -> RawTokenizer:
    """`words`: with the decoder of Llama's tokenizers, which also turns ▁ into spaces."""
    vocabulary = {word: index for index, word in enumerate(FALLBACK_WORDS)}
    vocabulary |= {f"<0x{byte:02X}>": FIRST_BYTE + byte for byte in range(256)}
    raw = RawTokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    spaces = [decoders.Replace("▁", " ")] if words else []
    strip = [decoders.Strip(" ", 1, 0)] if words else []
    raw.decoder = decoders.Sequence([*spaces, decoders.ByteFallback(), decoders.Fuse(), *strip])
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.add_special_tokens(["<s>"])
    return raw


TOKENS = st.lists(
    st.one_of(
        st.integers(0, FIRST_BYTE - 1),
        st.sampled_from([*"漢é".encode(), 0xFF, 0xC3, 0x41]).map(lambda byte: FIRST_BYTE + byte),
    ),
    max_size=12,
)


@pytest.mark.parametrize("words", [False, True])
def test_byte_fallback_gives_what_the_library_decodes(
    tmp_path_factory: pytest.TempPathFactory, words: bool
) -> None:
    """One U+FFFD for each byte of a run that is no UTF-8, as the library's own decoder writes."""
    raw = byte_fallback_tokenizer(words=words)
    tokenizer = saved(raw, tmp_path_factory.mktemp("fallback"))

    @given(TOKENS)
    def check(tokens: list[int]) -> None:
        assert streamed(tokenizer, tokens) == raw.decode(tokens, skip_special_tokens=True)

    check()
