"""`HcPre` and `HcPost` of the operator package for DeepSeek-V4, and torch_npu's `npu_mhc_*`.

The latter can be captured in process, and lack a converter only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nextn.compile.targets.ascend.custom_ops import Declared


def _hc_pre_shapes(
    x: Tensor, hc_fn: Tensor, hc_scale: Tensor, hc_base: Tensor, *, hc_mult: int = 4, **_: object
) -> tuple[Tensor, Tensor, Tensor]:
    rows, _streams, width = x.shape
    return (
        x.new_empty((rows, width)),
        x.new_empty((rows, hc_mult), dtype=torch.float32),
        x.new_empty((rows, hc_mult, hc_mult), dtype=torch.float32),
    )


def _hc_post_shapes(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return torch.empty_like(residual)


OPERATORS = (
    Declared(
        "custom",
        "npu_hc_pre",
        "(Tensor x, Tensor hc_fn, Tensor hc_scale, Tensor hc_base, *, int hc_mult=4, "
        "int hc_sinkhorn_iters=20, float norm_eps=1e-6, float hc_eps=1e-6) -> (Tensor, Tensor, Tensor)",
        _hc_pre_shapes,
    ),
    Declared(
        "custom",
        "npu_hc_post",
        "(Tensor x, Tensor residual, Tensor post, Tensor comb) -> Tensor",
        _hc_post_shapes,
    ),
)


def register_converters() -> None:
    _register_package()
    _register_torch_npu()


def _register_package() -> None:
    from torchair import register_fx_node_ge_converter
    from torchair.ge import attr, custom_op

    @register_fx_node_ge_converter(torch.ops.custom.npu_hc_pre.default)
    def hc_pre(
        x: Any,
        hc_fn: Any,
        hc_scale: Any,
        hc_base: Any,
        *,
        hc_mult: int = 4,
        hc_sinkhorn_iters: int = 20,
        norm_eps: float = 1e-6,
        hc_eps: float = 1e-6,
        meta_outputs: Any = None,
    ) -> Any:
        return custom_op(
            "HcPre",
            inputs={"x": x, "hc_fn": hc_fn, "hc_scale": hc_scale, "hc_base": hc_base},
            attrs={
                "hc_mult": attr.Int(hc_mult),
                "hc_sinkhorn_iters": attr.Int(hc_sinkhorn_iters),
                "norm_eps": attr.Float(norm_eps),
                "hc_eps": attr.Float(hc_eps),
            },
            outputs=["y", "post", "comb_frag"],
        )

    @register_fx_node_ge_converter(torch.ops.custom.npu_hc_post.default)
    def hc_post(x: Any, residual: Any, post: Any, comb: Any, meta_outputs: Any = None) -> Any:
        inputs = {"x": x, "residual": residual, "post": post, "comb": comb}
        return custom_op("HcPost", inputs=inputs, outputs=["y"])


def _register_torch_npu() -> None:
    from torchair import register_fx_node_ge_converter
    from torchair.ge import attr, custom_op

    @register_fx_node_ge_converter(torch.ops.npu.npu_mhc_pre.default)
    def mhc_pre(
        x: Any,
        phi: Any,
        alpha: Any,
        bias: Any,
        *,
        norm_eps: float = 1e-6,
        hc_eps: float = 1e-6,
        meta_outputs: Any = None,
    ) -> Any:
        return custom_op(
            "MhcPre",
            inputs={"x": x, "phi": phi, "alpha": alpha, "bias": bias, "gamma": None},
            attrs={
                "out_flag": attr.Int(0),
                "norm_eps": attr.Float(norm_eps),
                "hc_eps": attr.Float(hc_eps),
                "op_impl_mode": attr.Int(0),
            },
            outputs=["hin", "h_post", "h_res", "inv_rms", "h_mix", "h_pre"],
        )

    @register_fx_node_ge_converter(torch.ops.npu.npu_mhc_post.default)
    def mhc_post(x: Any, h_res: Any, h_out: Any, h_post: Any, meta_outputs: Any = None) -> Any:
        inputs = {"x": x, "h_res": h_res, "h_out": h_out, "h_post": h_post}
        return custom_op("MhcPost", inputs=inputs, outputs=["y"])

    @register_fx_node_ge_converter(torch.ops.npu.npu_mhc_sinkhorn.default)
    def mhc_sinkhorn(x: Any, *, eps: float = 1e-6, num_iters: int = 20, meta_outputs: Any = None) -> Any:
        return custom_op(
            "MhcSinkhorn",
            inputs={"x": x},
            attrs={"eps": attr.Float(eps), "num_iters": attr.Int(num_iters), "out_flag": attr.Int(0)},
            outputs=["output", "norm_out", "sum_out"],
        )
