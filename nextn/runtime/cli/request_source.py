"""Reads the requests a command line names; a bad one becomes a failed completion, not an end."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nextn.runtime.cli.options import PromptSource
from nextn.runtime.contract.errors import RequestError, UsageError
from nextn.runtime.engine.completion import Completion, failed
from nextn.runtime.engine.requests import Request, RequestId, RequestReader, parse_line, request_id

SINGLE_ID = 1

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)


def read_requests(source: PromptSource, reader: RequestReader) -> list[Request | Completion]:
    """The requests of `source` in order. Raises UsageError if its file cannot be read."""
    if source.flag == "requests":
        return list(_from_lines(_lines(source.value), reader))
    try:
        return [reader.read(_single_fields(source), SINGLE_ID)]
    except RequestError as error:
        return [failed(SINGLE_ID, error)]


def _single_fields(source: PromptSource) -> dict[str, Any]:
    if source.flag == "token_ids":
        return {"token_ids": _parse_ids(source.value)}
    if source.flag == "prompt":
        return {"prompt": source.value}
    try:
        return {"prompt": _read(source.value).decode("utf-8")}
    except UnicodeDecodeError as error:
        raise UsageError("prompt file is not UTF-8", file=source.value, found=error) from error


def _from_lines(lines: Iterable[bytes], reader: RequestReader) -> Iterator[Request | Completion]:
    taken: set[RequestId] = set()
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if content.strip():
            yield _from_line(content, number, reader, taken)


def _from_line(
    line: bytes, number: int, reader: RequestReader, taken: set[RequestId]
) -> Request | Completion:
    """`taken` are the ids of earlier lines: results are told apart by id, so the first keeps its own."""
    identity: RequestId = number
    try:
        fields = parse_line(line)
        given = request_id(fields.get("id", number))
        if given in taken:
            raise RequestError("bad request", key="id", expected="an id of its own", found=json.dumps(given))
        if given is not None:
            identity = given
            taken.add(identity)
        return reader.read(fields, default_id=number)
    except RequestError as error:
        return failed(identity, error)


def _lines(name: str) -> list[bytes]:
    if name == "-" and sys.stdin is None:
        raise UsageError("--requests - needs stdin, which is closed")
    data = sys.stdin.buffer.read() if name == "-" else _read(name)
    return data.split(b"\n")


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise UsageError("file cannot be read", file=name, found=error.strerror) from error


def _parse_ids(text: str) -> list[int]:
    parts = text.split(",") if text.strip() else []
    for index, part in enumerate(parts):
        if not _INTEGER.fullmatch(part.strip()):
            raise RequestError("bad request", key=f"token_ids[{index}]", expected="an integer", found=part)
    return [int(part) for part in parts]
