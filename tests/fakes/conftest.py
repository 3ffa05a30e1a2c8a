"""Tests that need torch_npu, on the fake CANN; in an environment without it nothing here is collected."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch_npu") is None:
    collect_ignore_glob = ["*"]
else:
    from tests.fakes.cann.fixtures import cann  # noqa: F401
