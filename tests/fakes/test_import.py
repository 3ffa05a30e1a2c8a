"""torch_npu loads on the fake, and only on the fake; devices are those that the environment names."""

from __future__ import annotations

import pytest

from tests.fakes.processes import run_python

DEVICES = "import torch, torch_npu; print(torch.npu.is_available(), torch.npu.device_count())"


def test_torch_npu_and_torchair_import() -> None:
    import torch
    import torch_npu  # noqa: F401
    import torchair

    assert torch.npu.is_available()
    assert callable(torchair.get_npu_backend)


def test_without_the_fake_torch_npu_does_not_import() -> None:
    done = run_python("import torch, torch_npu", on_the_fake=False)
    assert done.returncode != 0
    assert "cannot open shared object file" in done.stderr


@pytest.mark.parametrize(("devices", "expected"), [("3", "True 3"), ("0", "False 0")])
def test_the_device_count_follows_the_variable(devices: str, expected: str) -> None:
    done = run_python(DEVICES, FAKE_CANN_DEVICES=devices)
    assert done.stdout.splitlines()[-1] == expected, done.stderr


def test_a_device_that_is_not_there_is_refused() -> None:
    use = "import torch, torch_npu; print(torch.empty(1, device='npu:1').device)"
    assert run_python(use, FAKE_CANN_DEVICES="2").stdout.splitlines()[-1] == "npu:1"
    done = run_python(use, FAKE_CANN_DEVICES="1")
    assert done.returncode != 0
    assert "107001" in done.stderr or "Invalid" in done.stderr or "invalid" in done.stderr


def test_the_soc_follows_the_variable() -> None:
    name = "import torch, torch_npu; print(torch.npu.get_device_name(0))"
    assert run_python(name, FAKE_CANN_SOC="Ascend910B1").stdout.splitlines()[-1] == "Ascend910B1"
    assert run_python(name).stdout.splitlines()[-1] == "Ascend910_9391"
