"""The op layer: operations that have, or will have, one form per device. These are the plain aten forms.

They avoid what GE and ONNX opset 18 lack (design section 4): cumprod, softplus, log1p, amax, stable sort,
index_copy, squeeze.dims, polar, roll, repeat_interleave, nonzero, scatter_reduce, unfold, bit operations.
"""
