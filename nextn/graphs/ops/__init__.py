"""The op layer: plain aten implementations of the operations that a target may replace.

They avoid operations that GE and ONNX opset 18 lack (docs/design.md, "The op layer"): cumprod, softplus,
log1p, amax, stable sort, index_copy, squeeze.dims, polar, roll, repeat_interleave, nonzero, scatter_reduce,
unfold, bit operations.

Importing the package defines every operator, so that `operator.OPERATORS` is complete.
"""

from nextn.graphs.ops import (
    compress,
    experts,
    hyper_connection,
    indexer_topk,
    routing,
    sample_token,
    window_attention,
)

__all__ = [
    "compress",
    "experts",
    "hyper_connection",
    "indexer_topk",
    "routing",
    "sample_token",
    "window_attention",
]
