"""Text on the command line is what was typed, whatever the locale says of its encoding."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import json
from nextn.runtime.cli.arguments import build_parser
parsed = build_parser().parse_args()
print(json.dumps([parsed.prompt, parsed.stop]))
"""

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}


def parsed(environment: dict[str, str], *arguments: bytes) -> bytes:
    command = [sys.executable, "-c", CODE, "artifact", *arguments]
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True)
    return run.stdout.strip()


def test_prompt_and_stop_strings_are_utf_8_in_an_ascii_locale() -> None:
    given = parsed(ASCII, b"--prompt", "đem café 日本".encode(), b"--stop", "ß".encode())
    assert given == rb'["\u0111em caf\u00e9 \u65e5\u672c", ["\u00df"]]'


def test_bytes_that_are_no_utf_8_stay_as_the_locale_reads_them() -> None:
    """They are refused later, as no text."""
    assert parsed(ASCII, b"--prompt", b"caf\xe9") == rb'["caf\udce9", []]'
