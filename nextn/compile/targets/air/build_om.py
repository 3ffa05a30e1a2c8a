"""The script that turns an artifact's `.air` files into `.om` files on a machine with CANN."""

from __future__ import annotations

from collections.abc import Sequence

SCRIPT = "build_om.sh"
OM_FOLDER = "om"
"""Where the script puts its files, inside the artifact, with what else atc writes."""

SOC_FILE = "soc.txt"
"""Beside them: the chip they were compiled for; it is there when all are."""

_HEAD = """#!/bin/sh
# Compiles every graph of this artifact for one Ascend chip. Needs CANN's environment: source its set_env.sh.
# Usage: sh {script} SOC    as `npu-smi info` names the chip, for example Ascend910B1 or Ascend910_9391
# Then: nextn-compile --import-om ARTIFACT/{folder} -o ARTIFACT
# Written by nextn-compile. It was never run on a machine with CANN: atc comes with CANN only.
set -eu
soc=${{1:?usage: sh {script} SOC}}
cd "$(dirname "$0")"
mkdir -p {folder}
cd {folder}
rm -f {soc_file}
"""

_LINE = 'atc --framework=1 --model=../{air} --output={stem} --soc_version="$soc"\n'

_TAIL = 'echo "$soc" > {soc_file}\n'


def build_om_script(graph_files: Sequence[str]) -> str:
    """One `atc` line per graph; `--framework=1` is GE IR. `graph_files` are relative to the artifact."""
    lines = [
        _LINE.format(air=file, stem=file.rpartition("/")[2].removesuffix(".air")) for file in graph_files
    ]
    names = {"script": SCRIPT, "folder": OM_FOLDER, "soc_file": SOC_FILE}
    return _HEAD.format(**names) + "".join(lines) + _TAIL.format(**names)
