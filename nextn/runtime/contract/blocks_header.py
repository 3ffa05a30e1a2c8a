"""Writes `blocks.h`, the C++ mirror of `blocks.py`:

python -m nextn.runtime.contract.blocks_header > nextn/runtime/native/src/blocks.h
"""

from __future__ import annotations

from nextn.runtime.contract.blocks import (
    MAX_EOS,
    MAX_STEPS,
    MAX_WINDOW_ROWS,
    TEMPERATURE_ONE,
    Control,
    Result,
    field_offsets,
)

_CONSTANTS = {
    "max_steps": MAX_STEPS,
    "max_window_rows": MAX_WINDOW_ROWS,
    "max_eos": MAX_EOS,
    "temperature_one": TEMPERATURE_ONE,
}


def blocks_header() -> str:
    """The text of `blocks.h`."""
    lines = [
        "// Generated from nextn/runtime/contract/blocks.py; do not edit. To make it anew:",
        "// python -m nextn.runtime.contract.blocks_header > nextn/runtime/native/src/blocks.h",
        "// clang-format off",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace nextn::core {",
        "",
        "/** Columns of the control and result blocks. */",
        "struct BlockField {",
        "    const char *name;",
        "    int64_t offset;",
        "    int64_t length;",
        "};",
        "",
        *(f"constexpr int64_t {name} = {value};" for name, value in _CONSTANTS.items()),
    ]
    for name, block in (("control", Control), ("result", Result)):
        fields = {field: place for field, place in field_offsets(block).items() if field != "reserved"}
        lines += ["", f"namespace {name} {{", f"constexpr int64_t width = {block.WIDTH};"]
        lines += [
            f'constexpr BlockField {field}{{"{field}", {offset}, {length}}};'
            for field, (offset, length) in fields.items()
        ]
        lines += [f"constexpr BlockField fields[] = {{{', '.join(fields)}}};", f"}}  // namespace {name}"]
    return "\n".join([*lines, "", "}  // namespace nextn::core"])


if __name__ == "__main__":
    print(blocks_header())
