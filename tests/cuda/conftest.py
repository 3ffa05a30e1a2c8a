"""Tests that need a CUDA GPU and a CUDA build of torch; where there is none, nothing here is collected."""

from __future__ import annotations

import torch

if not torch.cuda.is_available():
    collect_ignore_glob = ["*"]
