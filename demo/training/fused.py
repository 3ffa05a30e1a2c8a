"""Autograd wrappers around the kernels in fused.c, compiled on first use with the system C compiler."""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import Function

SOURCE = Path(__file__).with_name("fused.c")


def _load_library() -> ctypes.CDLL:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"nextn_demo_{digest}_{os.getuid()}.so"
    if not library.exists():
        partial = library.with_suffix(f".{os.getpid()}")
        flags = ["-O3", "-march=native", "-ffast-math", "-fPIC", "-shared"]
        subprocess.check_call([os.environ.get("CC", "cc"), *flags, str(SOURCE), "-o", str(partial), "-lm"])
        partial.replace(library)  # atomic, so that processes starting together cannot see half a file
    return ctypes.CDLL(str(library))


_LIBRARY = _load_library()


def _call(name: str, *arguments: Tensor | int | float | None) -> None:
    """Call a kernel; tensors become pointers, the row count is the only long."""
    converted: list[ctypes.c_void_p | ctypes.c_long | ctypes.c_float] = []
    for value in arguments:
        if value is None or isinstance(value, Tensor):
            converted.append(ctypes.c_void_p(0 if value is None else value.data_ptr()))
        else:
            converted.append(ctypes.c_float(value) if isinstance(value, float) else ctypes.c_long(value))
    getattr(_LIBRARY, name)(*converted)


class _Sinkhorn(Function):
    @staticmethod
    def forward(ctx, logits: Tensor, iterations: int, eps: float) -> Tensor:
        logits = logits.contiguous()  # [rows, 16]
        mix = torch.empty_like(logits)
        _call("sinkhorn_forward", logits, mix, logits.numel() // 16, iterations, eps)
        ctx.save_for_backward(logits)
        ctx.settings = iterations, eps
        return mix

    @staticmethod
    def backward(ctx, grad: Tensor):
        (logits,) = ctx.saved_tensors
        grad, grad_logits = grad.contiguous(), torch.empty_like(logits)
        _call("sinkhorn_backward", logits, grad, grad_logits, logits.numel() // 16, *ctx.settings)
        return grad_logits, None, None


class _WriteStreams(Function):
    @staticmethod
    def forward(ctx, update: Tensor, streams: Tensor, write: Tensor, mix: Tensor) -> Tensor:
        saved = [t.contiguous() for t in (update, streams, write, mix)]
        out = torch.empty_like(saved[1])  # [rows, 4, hidden]
        _call("write_streams_forward", *saved, out, out.shape[0], out.shape[2])
        ctx.save_for_backward(*saved)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        saved, grad = ctx.saved_tensors, grad.contiguous()
        grads = [torch.empty_like(t) for t in saved]
        _call("write_streams_backward", grad, *saved, *grads, grad.shape[0], grad.shape[2])
        return tuple(grads)


class _ReadStreams(Function):
    @staticmethod
    def forward(ctx, streams: Tensor, read: Tensor) -> Tensor:
        streams, read = streams.contiguous(), read.contiguous()  # [rows, 4, hidden], [rows, 4]
        rows, _, width = streams.shape
        out = streams.new_empty(rows, width)
        _call("read_streams_forward", streams, read, out, rows, width)
        ctx.save_for_backward(streams, read)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        streams, read = ctx.saved_tensors
        grad, grads = grad.contiguous(), (torch.empty_like(streams), torch.empty_like(read))
        _call("read_streams_backward", grad, streams, read, *grads, *grad.shape)
        return grads


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        x = x.contiguous()
        width = x.shape[-1]
        out, inverse_rms = torch.empty_like(x), x.new_empty(x.numel() // width)
        _call("rms_norm_forward", x, weight, out, inverse_rms, x.numel() // width, width, eps)
        ctx.save_for_backward(x, weight, inverse_rms)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight, inverse_rms = ctx.saved_tensors
        grad, grad_x = grad.contiguous(), torch.empty_like(x)
        grad_weight = None if weight is None else torch.zeros_like(weight)
        rows, width = inverse_rms.numel(), x.shape[-1]
        _call("rms_norm_backward", grad, x, weight, inverse_rms, grad_x, grad_weight, rows, width)
        return grad_x, grad_weight, None


class _SwiGlu(Function):
    @staticmethod
    def forward(ctx, x: Tensor, limit: float) -> Tensor:
        x = x.contiguous()  # [rows, 2 * width]
        rows, width = x.shape[0], x.shape[1] // 2
        out = x.new_empty(rows, width)
        _call("swiglu_forward", x, out, rows, width, limit)
        ctx.save_for_backward(x)
        ctx.limit = limit
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        (x,) = ctx.saved_tensors
        grad, grad_x = grad.contiguous(), torch.empty_like(x)
        _call("swiglu_backward", x, grad, grad_x, *grad.shape, ctx.limit)
        return grad_x, None


class _Rotate(Function):
    @staticmethod
    def forward(ctx, x: Tensor, angles: Tensor, first: int, direction: float) -> Tensor:
        x = x.contiguous()  # [batch, length, heads, width]
        ctx.angles, ctx.first, ctx.direction = angles, first, direction
        return _Rotate.run(x, angles, first, direction)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Rotate.run(grad.contiguous(), ctx.angles, ctx.first, -ctx.direction), None, None, None

    @staticmethod
    def run(x: Tensor, angles: Tensor, first: int, direction: float) -> Tensor:
        out = torch.empty_like(x)
        batch, length, heads, width = x.shape
        rotary = 2 * angles.shape[1]
        _call("rotate", x, out, angles, batch * length, length, heads, width, rotary, first, direction)
        return out


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return _RmsNorm.apply(x, weight, eps)


def rotate(x: Tensor, angles: Tensor, first: int = 0, direction: float = 1.0) -> Tensor:
    """Interleaved rotary positions; angles [positions, pairs, 2] must be contiguous."""
    return _Rotate.apply(x, angles, first, direction)


sinkhorn = _Sinkhorn.apply
write_streams = _WriteStreams.apply
read_streams = _ReadStreams.apply
swiglu = _SwiGlu.apply
