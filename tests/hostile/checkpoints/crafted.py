"""Safetensors files written by hand, so that each can lie in one way."""

import json
import struct
from pathlib import Path
from typing import Any

Header = dict[str, Any]


def two_tensors() -> Header:
    """A sound header: `a`, 4 floats, and `b`, 8 bytes."""
    return {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [16, 24]},
    }


def write_header(
    path: Path, header: Header | bytes, data: bytes = bytes(24), length: int | None = None
) -> Path:
    """A file with the given header, as JSON or raw, the given data, and perhaps a false header length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path
