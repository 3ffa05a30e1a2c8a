"""ctypes mirror of `nextn.h`: structs, enums and function prototypes, in the header's order."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint64,
    c_void_p,
)
from enum import IntEnum

MAX_STEPS = 8
"""Length of `nextn_metrics.accepted_at_least`."""


class Status(IntEnum):
    """`nextn_status`; the values are the command line's exit codes."""

    OK = 0
    USAGE = 2
    ARTIFACT = 4
    RUNTIME = 5
    INTERRUPTED = 130


class NativeFinish(IntEnum):
    """`nextn_finish_reason`."""

    UNFINISHED = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3


class TensorKind(IntEnum):
    """`nextn_tensor_kind`."""

    WEIGHT = 0
    STATE = 1
    INPUT = 2


class ModelParams(Structure):
    _fields_ = [("struct_size", c_size_t), ("torch_library", c_char_p), ("verify_weights", c_bool)]


class NativeTensor(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("data", c_void_p),
        ("num_bytes", c_size_t),
        ("kind", c_int),
    ]


AttachFunction = CFUNCTYPE(c_bool, c_void_p, POINTER(NativeTensor), c_size_t)
NamedFunction = CFUNCTYPE(c_bool, c_void_p, c_char_p)
WriteFunction = CFUNCTYPE(c_bool, c_void_p, c_char_p, c_size_t, c_size_t)
WaitFunction = CFUNCTYPE(c_bool, c_void_p)
"""The functions of a `nextn_executor`; the first argument is its `user`."""


class NativeExecutor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("attach", AttachFunction),
        ("load", NamedFunction),
        ("write", WriteFunction),
        ("launch", NamedFunction),
        ("wait", WaitFunction),
        ("read", NamedFunction),
    ]


class SessionParams(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("slots", c_int32),
        ("round_samples", c_int32),
        ("speculation", c_bool),
        ("phases", c_bool),
        ("executor", POINTER(NativeExecutor)),
    ]


class NativeRequest(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("prompt", POINTER(c_int64)),
        ("prompt_length", c_size_t),
        ("max_new_tokens", c_int64),
        ("seed", c_int64),
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("top_k", c_int32),
        ("ignore_eos", c_bool),
    ]


class NativeResult(Structure):
    _fields_ = [
        ("tokens", POINTER(c_int64)),
        ("num_tokens", c_size_t),
        ("accept_lens", POINTER(c_uint8)),
        ("num_rounds", c_size_t),
        ("finish_reason", c_int),
        ("prompt_tokens", c_size_t),
        ("ttft_ms", c_double),
        ("e2e_ms", c_double),
    ]


class NativeMetrics(Structure):
    _fields_ = [
        ("num_rounds", c_uint64),
        ("num_row_rounds", c_uint64),
        ("num_accepted", c_uint64),
        ("accepted_at_least", c_uint64 * MAX_STEPS),
        ("num_graph_launches", c_uint64),
        ("num_prefill_launches", c_uint64),
        ("num_draft_forwards_prefill", c_uint64),
        ("num_draft_forwards_extend", c_uint64),
        ("num_draft_forwards_step", c_uint64),
        ("prefill_ms", c_double),
        ("decode_ms", c_double),
    ]


class NativeRoundTimes(Structure):
    _fields_ = [
        ("graph_us", c_float),
        ("host_us", c_float),
        ("verify_us", c_float),
        ("accept_us", c_float),
        ("extend_us", c_float),
        ("step_us", c_float),
    ]


class NativeModelInfo(Structure):
    _fields_ = [
        ("num_steps", c_int32),
        ("slots", c_int32),
        ("num_graphs", c_int32),
        ("vocab_size", c_int64),
        ("max_seq_len", c_int64),
        ("prefill_chunk", c_int64),
        ("weight_bytes", c_uint64),
        ("state_bytes", c_uint64),
    ]


STRUCTS: dict[str, type[Structure]] = {
    "nextn_model_params": ModelParams,
    "nextn_tensor": NativeTensor,
    "nextn_executor": NativeExecutor,
    "nextn_session_params": SessionParams,
    "nextn_request": NativeRequest,
    "nextn_result": NativeResult,
    "nextn_metrics": NativeMetrics,
    "nextn_round_times": NativeRoundTimes,
    "nextn_model_info": NativeModelInfo,
}
"""C name -> mirror."""

TokenCallback = CFUNCTYPE(c_bool, c_void_p, c_uint64, POINTER(c_int64), c_size_t)
"""`nextn_token_callback`: (user, request, tokens, count) -> keep going."""

PROTOTYPES: dict[str, tuple[object, tuple[object, ...]]] = {
    "nextn_version": (c_char_p, ()),
    "nextn_model_default_params": (ModelParams, ()),
    "nextn_session_default_params": (SessionParams, ()),
    "nextn_request_default": (NativeRequest, ()),
    "nextn_model_open": (c_int, (c_char_p, POINTER(ModelParams), POINTER(c_void_p), c_char_p, c_size_t)),
    "nextn_model_close": (None, (c_void_p,)),
    "nextn_model_get_info": (NativeModelInfo, (c_void_p,)),
    "nextn_model_manifest": (c_char_p, (c_void_p,)),
    "nextn_session_create": (
        c_int,
        (c_void_p, POINTER(SessionParams), POINTER(c_void_p), c_char_p, c_size_t),
    ),
    "nextn_session_destroy": (None, (c_void_p,)),
    "nextn_session_last_error": (c_char_p, (c_void_p,)),
    "nextn_session_submit": (c_int, (c_void_p, POINTER(NativeRequest), POINTER(c_uint64))),
    "nextn_session_run": (c_int, (c_void_p, TokenCallback, c_void_p)),
    "nextn_session_run_until_finished": (c_int, (c_void_p, TokenCallback, c_void_p, POINTER(c_bool))),
    "nextn_session_run_for": (c_int, (c_void_p, c_double, TokenCallback, c_void_p, POINTER(c_bool))),
    "nextn_session_turn": (c_int, (c_void_p, TokenCallback, c_void_p, POINTER(c_bool))),
    "nextn_session_cancel": (c_int, (c_void_p, c_uint64)),
    "nextn_session_interrupt": (None, (c_void_p,)),
    "nextn_session_result": (c_int, (c_void_p, c_uint64, POINTER(NativeResult))),
    "nextn_session_next_finished": (c_bool, (c_void_p, POINTER(c_uint64))),
    "nextn_session_release": (None, (c_void_p, c_uint64)),
    "nextn_session_get_metrics": (NativeMetrics, (c_void_p,)),
    "nextn_session_round_times": (c_size_t, (c_void_p, POINTER(NativeRoundTimes), c_size_t)),
    "nextn_session_state": (c_void_p, (c_void_p, c_char_p, POINTER(c_size_t))),
}
"""Function name -> (result type, argument types)."""


def declare(library: ctypes.CDLL) -> None:
    """Gives every function of `nextn.h` its prototype; AttributeError if the library lacks one."""
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
