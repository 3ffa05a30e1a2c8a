"""What importing torch is to leave alone."""

from __future__ import annotations

import os
import sys


def load_no_backends() -> None:
    """To be called before torch is imported, which else imports torch_npu, and fails where CANN is not.

    Who needs torch_npu imports it.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
