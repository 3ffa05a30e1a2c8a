"""Prompt text to token ids, and token ids back to text one token at a time."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from nextn.runtime.contract.errors import ArtifactError, RequestError

TOKENIZER_FILE = "tokenizer.json"

REPLACEMENT = "\ufffd"


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
        self._token_bytes = _token_bytes_of(self._tokenizer)

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
        return WindowDetokenizer(self._tokenizer)


class TokenBytes:
    """The bytes behind each token of a byte-level or byte-fallback vocabulary; b"" for special tokens."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, byte_level: bool) -> None:
        self._tokenizer = tokenizer
        self._alphabet = _byte_level_alphabet() if byte_level else {}
        self._fallback = {} if byte_level else {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
        added = tokenizer.get_added_tokens_decoder()
        self._special = {token for token, entry in added.items() if entry.special}
        self._cache: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        found = self._cache.get(token)
        if found is None:
            found = self._cache[token] = self._bytes(token)
        return found

    def _bytes(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._special:
            return b""
        if piece in self._fallback:
            return self._fallback[piece]
        if all(character in self._alphabet for character in piece):
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

    The earlier tokens are the context that decoders with word-boundary rules need.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._context = 0
        self._context_text = ""

    def push(self, token: int) -> str:
        self._window.append(token)
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


def _token_bytes_of(tokenizer: tokenizers.Tokenizer) -> TokenBytes | None:
    """None if the decoder does more than join bytes."""
    decoder: dict[str, Any] = json.loads(tokenizer.to_str()).get("decoder") or {}
    if decoder.get("type") == "ByteLevel":
        return TokenBytes(tokenizer, byte_level=True)
    steps = [step.get("type") for step in decoder.get("decoders", [decoder])]
    if steps and set(steps) <= {"ByteFallback", "Fuse"}:
        return TokenBytes(tokenizer, byte_level=False)
    return None


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 is itself, the other bytes follow from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
