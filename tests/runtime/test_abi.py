"""The ctypes mirror against the header itself, as a C compiler reads it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from nextn.runtime.bindings import abi
from nextn.runtime.contract.blocks import MAX_STEPS
from tests.runtime.conftest import HEADERS

HEADER = (HEADERS / "nextn.h").read_text()


def test_every_field_has_the_offset_and_size_of_the_header(
    compile_c: Callable[..., Path], tmp_path: Path
) -> None:
    lines, expected = [], []
    for c_name, mirror in abi.STRUCTS.items():
        lines.append(f'printf("%zu\\n", sizeof({c_name}));')
        expected.append(ctypes.sizeof(mirror))
        for field in mirror._fields_:
            name = field[0]
            member = f"(({c_name} *)0)->{name}"
            lines.append(f'printf("%zu\\n%zu\\n", offsetof({c_name}, {name}), sizeof({member}));')
            descriptor = getattr(mirror, name)
            expected += [descriptor.offset, descriptor.size]
    source = tmp_path / "layout.c"
    body = "\n".join(lines)
    source.write_text(f'#include <stdio.h>\n#include "nextn.h"\nint main(void) {{\n{body}\nreturn 0;\n}}\n')
    output = subprocess.run([compile_c(source)], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in output.split()] == expected


def test_every_struct_field_of_the_header_is_mirrored() -> None:
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", HEADER, re.S):
        plain = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
        plain = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", plain)  # a member that is a function
        found[name] = re.findall(r"(\w+)(?:\[\d+\])?\s*[;,]", plain)
    mirrored = {name: [field[0] for field in mirror._fields_] for name, mirror in abi.STRUCTS.items()}
    assert found == mirrored


def test_every_function_of_the_header_has_a_prototype() -> None:
    declared = re.findall(r"^NEXTN_API [^;]*?(nextn_\w+)\(", HEADER, re.M)
    assert sorted(declared) == sorted(abi.PROTOTYPES)


def test_enums_have_the_values_of_the_header() -> None:
    values = {name: int(value) for name, value in re.findall(r"NEXTN_(\w+) = (\d+)", HEADER)}
    for status in abi.Status:
        assert values[status.name] == status.value
    for reason in abi.NativeFinish:
        assert values[reason.name] == reason.value
    for kind in abi.TensorKind:
        assert values[kind.name] == kind.value
    assert len(values) == len(abi.Status) + len(abi.NativeFinish) + len(abi.TensorKind)


def test_accepted_at_least_has_room_for_every_draft() -> None:
    assert abi.MAX_STEPS == MAX_STEPS
