"""The script that turns an artifact's `.air` files into `.om` files on a machine with CANN."""

from __future__ import annotations

from collections.abc import Sequence

SCRIPT = "build_om.sh"
OM_FOLDER = "om"
"""Where the script puts its files, inside the artifact."""

_HEAD = """#!/bin/sh
# Compiles every graph of this artifact for one Ascend chip. Needs CANN's environment: source its set_env.sh.
# Usage: sh {script} SOC    as `npu-smi info` names the chip, for example Ascend910B1 or Ascend910_9391
# Written by nextn-compile. It was never run on a machine with CANN: atc comes with CANN only.
set -eu
cd "$(dirname "$0")"
soc=${{1:?usage: sh {script} SOC}}
mkdir -p {folder}
"""

_LINE = 'atc --framework=1 --model={air} --output={folder}/{stem} --soc_version="$soc"\n'


def build_om_script(graph_files: Sequence[str]) -> str:
    """One `atc` line per graph; `--framework=1` is GE IR. `graph_files` are relative to the artifact."""
    lines = [
        _LINE.format(air=file, folder=OM_FOLDER, stem=file.rpartition("/")[2].removesuffix(".air"))
        for file in graph_files
    ]
    return _HEAD.format(script=SCRIPT, folder=OM_FOLDER) + "".join(lines)
