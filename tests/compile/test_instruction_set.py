"""Which instructions graphs may use, from made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextn.compile.targets.aoti.target import choose_instruction_set
from nextn.runtime.contract.errors import UsageError

HASWELL = "fpu sse2 avx avx2 bmi1 bmi2 f16c fma movbe"
SKYLAKE_X = f"{HASWELL} avx512f avx512bw avx512cd avx512dq avx512vl"
ZEN_4 = f"{SKYLAKE_X} avx512_vnni avx512_bf16 sha_ni"


@pytest.fixture(autouse=True)
def on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def cpuinfo(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n")
    return path


def test_native_is_the_highest_level_of_the_machine(tmp_path: Path) -> None:
    zen_4 = choose_instruction_set("native", cpuinfo(tmp_path, ZEN_4))
    assert (zen_4.march, zen_4.vector_bits) == ("x86-64-v4", 512)
    assert {"avx2", "avx512f", "avx512_vnni", "avx512_bf16"} <= set(zen_4.features)
    skylake = choose_instruction_set("native", cpuinfo(tmp_path, SKYLAKE_X))
    assert "avx512_vnni" not in skylake.features and "avx512vl" in skylake.features
    haswell = choose_instruction_set("native", cpuinfo(tmp_path, HASWELL))
    assert (haswell.march, haswell.vector_bits) == ("x86-64-v3", 256)


def test_avx2_asks_for_nothing_wider(tmp_path: Path) -> None:
    chosen = choose_instruction_set("avx2", cpuinfo(tmp_path, ZEN_4))
    assert (chosen.march, chosen.vector_bits) == ("x86-64-v3", 256)
    assert not any(name.startswith("avx512") for name in chosen.features)


def test_a_machine_without_avx2_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="avx2"):
        choose_instruction_set("native", cpuinfo(tmp_path, "fpu sse2 avx"))


def test_other_architectures_compile_natively(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    path = tmp_path / "cpuinfo"
    path.write_text("Features\t: fp asimd\n")
    chosen = choose_instruction_set("native", path)
    assert (chosen.march, chosen.vector_bits, chosen.features) == ("native", None, ("asimd", "fp"))
    with pytest.raises(UsageError, match="x86-64"):
        choose_instruction_set("avx2", path)
