"""The generator: what it takes from the wheel, and the assembler text it writes."""

from __future__ import annotations

import re

import pytest

from tests.fakes.cann import assembly, build, elf, wheel


@pytest.fixture(scope="module")
def demand() -> wheel.Demand:
    return wheel.read_demand()


def test_the_demand_is_what_a_machine_without_cann_lacks(demand: wheel.Demand) -> None:
    assert {"libascendcl.so", "libge_runner.so", "libhccl.so"} <= set(demand.libraries)
    assert "aclrtMalloc" in demand.linked
    assert not [name for name in demand.libraries if name in elf.system_libraries()]
    assert not [name for name in demand.linked if name.startswith(("Py", "_Py", "_ZN2at", "_ZNSt"))]


def test_a_launcher_is_an_operator_with_both_its_functions(demand: wheel.Demand) -> None:
    assert "aclnnAdd" in demand.launchers
    assert "aclnnAddGetWorkspaceSize" not in demand.launchers
    # Looked up, and an operator's; but it launches nothing.
    name = "aclnnFusedInferAttentionScoreV3GetMaxWorkspaceSize"
    assert name in demand.looked_up and name not in demand.launchers


def test_the_core_offers_everything_that_is_linked(demand: wheel.Demand) -> None:
    offered = elf.defined_symbols(build.libraries() / build.CORE)
    assert demand.linked <= offered
    assert demand.looked_up <= offered


def test_every_missing_library_is_there(demand: wheel.Demand) -> None:
    folder = build.libraries()
    assert demand.libraries
    for name in demand.libraries:
        assert name == build.CORE or elf.needed_libraries(folder / name) == [build.CORE]


def test_a_second_build_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("built again")

    folder = build.libraries()
    monkeypatch.setattr(build, "build_into", refuse)
    assert build.libraries() == folder
    monkeypatch.setattr(wheel, "version", lambda: "another")
    with pytest.raises(AssertionError, match="built again"):
        build.libraries()


@pytest.mark.parametrize("machine", sorted(assembly.MACHINES))
def test_every_machine_gets_the_same_functions(machine: str) -> None:
    text = assembly.stubs(["second", "first"], ["aclnnAdd"], machine)
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["first", "second", "aclnnAdd"]
    assert text.count("fake_cann_launch") == 1
    assert '.Lname0: .asciz "aclnnAdd"' in text and "{" not in text


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="riscv64"):
        assembly.stubs([], [], "riscv64")
