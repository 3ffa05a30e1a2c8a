"""Assembler text for the functions that have no behaviour of their own.

C would not do: the mangled C++ names among them are no C names, and their types are unknown.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """How one instruction set writes the two kinds of stub."""

    return_zero: tuple[str, ...]
    """Zero in every register that can hold a result."""
    launch: tuple[str, ...]
    """Jumps to `fake_cann_launch(name, stream)`; called as (workspace, bytes, executor, stream)."""


MACHINES = {
    "x86_64": Machine(
        return_zero=("xorl %eax, %eax", "xorl %edx, %edx", "ret"),
        launch=("leaq {label}(%rip), %rdi", "movq %rcx, %rsi", "jmp fake_cann_launch@PLT"),
    ),
    # Written from the manuals and never run: there was no such machine to run it on.
    "aarch64": Machine(
        return_zero=("mov x0, xzr", "mov x1, xzr", "ret"),
        launch=("adrp x0, {label}", "add x0, x0, :lo12:{label}", "mov x1, x3", "b fake_cann_launch"),
    ),
}


def _function(name: str, instructions: Iterable[str]) -> list[str]:
    return [
        f".globl {name}",
        f".type {name}, %function",
        f"{name}:",
        *(f"    {instruction}" for instruction in instructions),
        f".size {name}, .-{name}",
    ]


def stubs(zeros: Iterable[str], launchers: Iterable[str], machine: str = platform.machine()) -> str:
    """Functions `zeros` that return 0, and `launchers` that log their own name."""
    if machine not in MACHINES:
        raise NotImplementedError(f"no stubs for {machine}: have {', '.join(MACHINES)}")
    code = MACHINES[machine]
    lines = [".text"]
    names = [".section .rodata"]
    for name in sorted(zeros):
        lines += _function(name, code.return_zero)
    for index, name in enumerate(sorted(launchers)):
        label = f".Lname{index}"
        lines += _function(name, (instruction.format(label=label) for instruction in code.launch))
        names.append(f'{label}: .asciz "{name}"')
    # Without this note the linker would ask for an executable stack.
    note = '.section .note.GNU-stack, "", %progbits'
    return "\n".join([*lines, *names, note, ""])
