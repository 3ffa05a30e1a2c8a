"""Prompt text to token ids, and token ids back to text one token at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from nextn.runtime.contract.errors import ArtifactError, RequestError

TOKENIZER_FILE = "tokenizer.json"

REPLACEMENT = "\ufffd"

_BYTE_PIECE = re.compile("<0x[0-9a-fA-F]{2}>")


class Detokenizer(Protocol):
    """Turns tokens into text as they come.

    The text of a sequence is the concatenation of all `push` results and the final `flush`, so it does not
    depend on how the tokens arrived. Special tokens contribute no text.
    """

    def push(self, token: int) -> str:
        """Text that became certain with `token`."""

    def flush(self) -> str:
        """Text still held back; a cut-off character becomes U+FFFD. Call once, at the end."""


class Tokenizer:
    """The artifact's `tokenizer.json`."""

    def __init__(self, file: Path) -> None:
        """Raises ArtifactError if `file` is not a tokenizer."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for every fault
            raise ArtifactError("not a tokenizer", file=file, found=error) from error
        _forget_training_settings(self._tokenizer)
        stored = json.loads(self._tokenizer.to_str())
        steps = _decoder_steps(stored.get("decoder"))
        self._token_bytes = TokenBytes(self._tokenizer) if _joins_bytes(steps) else None
        self._byte_fallback = "ByteFallback" in steps
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added.items() if entry.special)

    def encode(self, text: str, field: str = "prompt") -> tuple[int, ...]:
        """Token ids, with the special tokens that the tokenizer's own post-processor adds.

        Raises RequestError naming `field` if `text` is not valid Unicode.
        """
        try:
            return tuple(self._tokenizer.encode(text).ids)
        except TypeError as error:
            raise RequestError("bad text", key=field, expected="Unicode", found="a surrogate") from error

    def detokenizer(self) -> Detokenizer:
        if self._token_bytes is not None:
            return ByteDetokenizer(self._token_bytes)
        return WindowDetokenizer(self._tokenizer, self._special, byte_fallback=self._byte_fallback)


class TokenBytes:
    """The bytes behind each token of a byte-level vocabulary; b"" for special tokens.

    An added token is text: the library reads its letters as bytes of the alphabet, where that has them, so
    that "café" would come out as an incomplete character (https://github.com/huggingface/tokenizers/issues/1392).
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._alphabet = _byte_level_alphabet()
        self._added = tokenizer.get_added_tokens_decoder()
        self._cache: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        found = self._cache.get(token)
        if found is None:
            found = self._cache[token] = self._bytes(token)
        return found

    def _bytes(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token)
        added = self._added.get(token)
        if piece is None or (added is not None and added.special):
            return b""
        if added is None and all(character in self._alphabet for character in piece):
            return bytes(self._alphabet[character] for character in piece)
        return piece.encode()


class ByteDetokenizer:
    """Exact and linear: bytes go through an incremental UTF-8 decoder."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._token_bytes[token])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other decoder: decodes the tokens since the last certain text together with those before it.

    The earlier tokens are the context that decoders with word-boundary rules need. A run of `<0xNN>` tokens
    is held back until it ends: the library writes one U+FFFD for each of its bytes if the run as a whole is
    not valid UTF-8. Special tokens have no text and end no run.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special: Set[int], *, byte_fallback: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._byte_fallback = byte_fallback
        self._window: list[int] = []
        self._context = 0
        self._context_text = ""

    def push(self, token: int) -> str:
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._special:
            return ""
        self._window.append(token)
        if self._byte_fallback and _BYTE_PIECE.fullmatch(piece):
            return ""
        text = self._decode()
        if text.endswith(REPLACEMENT):
            return ""
        return self._settle(text)

    def flush(self) -> str:
        return self._settle(self._decode())

    def _settle(self, text: str) -> str:
        delta = text[len(self._context_text) :]
        if delta:
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._context_text = self._decode()
        return delta

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=True)


def _forget_training_settings(tokenizer: tokenizers.Tokenizer) -> None:
    """A file stores what its last user had set: truncation and padding of batches, dropout of merges.

    A prompt is encoded whole and always to the same ids, as Hugging Face does for the first two.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None) is not None:
        tokenizer.model.dropout = None


def _decoder_steps(decoder: dict[str, Any] | None) -> list[str]:
    """The types of a stored decoder's steps, in order; none if the file has no decoder."""
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for part in decoder.get("decoders", []) for step in _decoder_steps(part)]
    return [str(decoder.get("type"))]


def _joins_bytes(steps: Sequence[str]) -> bool:
    """Whether a decoder turns each token into bytes and does nothing but join them."""
    return "ByteLevel" in steps and set(steps) <= {"ByteLevel", "Fuse"}


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 is itself, the other bytes follow from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
