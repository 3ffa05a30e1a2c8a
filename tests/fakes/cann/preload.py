"""Makes `import torch_npu` find the fake, without an environment variable for the loader."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tests.fakes.cann import build


def preload() -> Path:
    """Loads the stand-ins into this process; before torch_npu is imported. Returns their folder.

    The loader takes a library that is loaded already for one that is needed by the same name.
    """
    # Otherwise a plain `import torch` imports torch_npu, maybe before this was called.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    # Launches from the calling thread: the log's order is the program's.
    os.environ.setdefault("TASK_QUEUE_ENABLE", "0")
    folder = build.libraries()
    for path in [folder / build.CORE, *sorted(folder.glob("*.so"))]:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return folder
