import importlib.util

if importlib.util.find_spec("torch_npu") is not None:
    # Before anything imports torch or transformers: both import torch_npu where it is installed.
    from tests.fakes.cann.preload import preload

    preload()
