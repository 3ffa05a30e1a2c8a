"""torch_npu loads on the fake, and only on the fake; devices are those that the environment names."""

from __future__ import annotations

import pytest
import torch

from tests.fakes.processes import run_python


def test_torch_npu_and_torchair_import() -> None:
    import torch_npu  # noqa: F401
    import torchair

    assert torch.npu.is_available()
    assert callable(torchair.get_npu_backend)


def test_without_the_fake_torch_npu_does_not_import() -> None:
    done = run_python("import torch, torch_npu", on_the_fake=False)
    assert done.returncode != 0
    assert "cannot open shared object file" in done.stderr


def test_without_variables_there_is_one_device() -> None:
    assert torch.npu.device_count() == 1
    assert torch.npu.get_device_name(0) == "Ascend910_9391"
    with pytest.raises(RuntimeError, match="107001|[Ii]nvalid"):
        torch.empty(1, device="npu:1")


def test_count_and_kind_of_the_devices_follow_the_variables() -> None:
    code = (
        "import torch, torch_npu\n"
        "print(torch.npu.device_count(), torch.npu.get_device_name(0), torch.empty(1, device='npu:2').device)"
    )
    done = run_python(code, FAKE_CANN_DEVICES="3", FAKE_CANN_SOC="Ascend910B1")
    assert done.stdout.splitlines()[-1] == "3 Ascend910B1 npu:2", done.stderr


def test_there_may_be_no_device() -> None:
    code = "import torch, torch_npu; print(torch.npu.is_available(), torch.npu.device_count())"
    done = run_python(code, FAKE_CANN_DEVICES="0")
    assert done.stdout.splitlines()[-1] == "False 0", done.stderr
