"""The argument parser of nextn-compile. Values are only typed here; `options` checks them."""

from __future__ import annotations

import argparse

from nextn.runtime.contract.version import VERSION
from nextn.runtime.tool.command_line import OneLineParser


def build_parser() -> argparse.ArgumentParser:
    """Every flag of the design's command line, with its default."""
    parser = OneLineParser(
        prog="nextn-compile",
        description="Compile a DeepSeek-V4 checkpoint and its NextN layer to a folder of fixed-shape graphs.",
        epilog="exit codes: 0 ok, 2 usage, 3 checkpoint, 4 artifact, 5 toolchain or disk, 130 interrupted",
        allow_abbrev=False,
    )
    parser.add_argument(
        "checkpoint", nargs="?", metavar="CHECKPOINT", help="checkpoint folder, or `demo` for the bundled one"
    )
    parser.add_argument("-o", "--output", metavar="ART", help="artifact folder to write")
    _add_target(parser)
    _add_shape(parser)
    _add_speculation(parser)
    _add_run(parser)
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    group.add_argument("--device", choices=("cpu", "cuda", "npu"), default="cpu")
    group.add_argument(
        "--emit",
        choices=("aoti", "pt2", "air", "onnx"),
        help="form of the graphs (default: aoti on cpu, pt2 elsewhere)",
    )
    group.add_argument("--isa", choices=("native", "avx2"), default="native", help="CPU instruction set")
    group.add_argument(
        "--soc", metavar="NAME", help="Ascend chip whose capture limits are kept, for example Ascend910B1"
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="compute dtype (default: bfloat16; float32 on cpu)",
    )
    group.add_argument(
        "--weights-as",
        choices=("stored", "bfloat16", "float32"),
        help="how matrices are kept in the artifact (default: as the compute dtype); stored: int8 stays int8",
    )
    group.add_argument(
        "--npu-fused",
        action="store_true",
        help="let exported programs call torch_npu's fused operators (GE IR always does)",
    )
    group.add_argument(
        "--npu-custom-ops",
        metavar="NAME,NAME",
        help="GE operators of packages that atc will find, which graphs may call, SparseAttnSharedkv for "
        "example (default: none)",
    )
    group.add_argument("--opset", type=int, metavar="N", help="ONNX operator set (default: 18)")
    group.add_argument("--import-om", metavar="DIR", help="collect .om files compiled elsewhere")


def _add_shape(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("shapes")
    group.add_argument("--batch-sizes", default="1", metavar="B,B", help="decode batch sizes (default: 1)")
    group.add_argument(
        "--max-seq-len",
        type=int,
        metavar="N",
        help="prompt + generated tokens of a request (default: min(4096, the model's))",
    )
    group.add_argument("--prefill-chunk", type=int, default=128, metavar="C", help="tokens (default: 128)")


def _add_speculation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation")
    group.add_argument(
        "--speculative-algorithm",
        choices=("EAGLE", "NEXTN"),
        default="EAGLE",
        help="NEXTN is an alias of EAGLE",
    )
    group.add_argument("--speculative-num-steps", type=int, default=3, metavar="K", help="0..8 (default: 3)")
    group.add_argument(
        "--speculative-eagle-topk", type=int, default=1, metavar="1", help="only 1 is supported"
    )
    group.add_argument("--speculative-num-draft-tokens", type=int, metavar="K+1", help="always K+1")
    group.add_argument("--speculative-draft-model-path", metavar="DIR", help="folder to take mtp.* from")


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument(
        "--jobs", type=int, metavar="N", help="graphs compiled at once (default: by CPUs and memory)"
    )
    group.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    group.add_argument("--force", action="store_true", help="replace an artifact made from other inputs")
    group.add_argument("--json", action="store_true", help="print the plan or the summary as JSON")
    group.add_argument("--inspect", action="store_true", help="describe the checkpoint")
    group.add_argument("--check-finite", action="store_true", help="look for NaN and Inf in the checkpoint")
    group.add_argument("--config-only", metavar="CONFIG", help="plan or trace from a config.json alone")
    group.add_argument("--trace-only", action="store_true", help="trace the graphs on fake tensors and stop")
    group.add_argument("--debug", action="store_true", help="print a traceback with an error")
    group.add_argument("--version", action="version", version=f"nextn-compile {VERSION}")
