"""GE's two numberings of dtypes."""

import torch

PROTO_DTYPES = {
    1: torch.float32,
    2: torch.float16,
    3: torch.int8,
    4: torch.uint8,
    7: torch.int32,
    8: torch.int64,
    11: torch.bool,
    12: torch.float64,
    27: torch.bfloat16,
}
"""`ge.proto.DataType`, which describes tensors in a file."""

ENGINE_DTYPES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.int8,
    3: torch.int32,
    4: torch.uint8,
    9: torch.int64,
    10: torch.uint64,
    11: torch.float64,
    12: torch.bool,
    27: torch.bfloat16,
}
"""`ge::DataType`, which attributes such as `dst_type` use. Not the same numbers."""
