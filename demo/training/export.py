"""Write the release: weights under their original names and types, config, tokenizer and prompts."""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import byte_tokenizer
from .config import BOS, CONFIG, EOS, PAD
from .model import DemoModel, kept_in_float32
from .prompts import write_prompts

RELEASE = Path(__file__).resolve().parents[2] / "nextn" / "weights" / "demo"
"""The folder of the shipped checkpoint."""


def to_release(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split the stacked experts and round what the release keeps in bf16."""
    released: dict[str, Tensor] = {}
    for name, tensor in state.items():
        stem, _, last = name.rpartition(".")
        if last == "experts_w13":
            for expert, (w1, w3) in enumerate(zip(*tensor.chunk(2, dim=1), strict=True)):
                released[f"{stem}.experts.{expert}.w1.weight"] = w1
                released[f"{stem}.experts.{expert}.w3.weight"] = w3
        elif last == "experts_w2":
            for expert, w2 in enumerate(tensor):
                released[f"{stem}.experts.{expert}.w2.weight"] = w2
        else:
            released[name] = tensor
    for name, tensor in released.items():
        if tensor.is_floating_point() and not kept_in_float32(name):
            tensor = tensor.bfloat16()
        released[name] = tensor.contiguous().clone()
    return released


def from_release(released: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `to_release`, in fp32."""
    released = {n: t.float() if t.is_floating_point() else t for n, t in released.items()}
    state = {n: t for n, t in released.items() if ".experts." not in n}
    for stem in sorted({n.split(".experts.")[0] for n in released if ".experts." in n}):
        w1, w2, w3 = (_stack_experts(released, stem, matrix) for matrix in ("w1", "w2", "w3"))
        state[f"{stem}.experts_w13"] = torch.cat([w1, w3], 1)
        state[f"{stem}.experts_w2"] = w2
    return state


def _stack_experts(released: dict[str, Tensor], stem: str, matrix: str) -> Tensor:
    experts = range(CONFIG["n_routed_experts"])
    return torch.stack([released[f"{stem}.experts.{expert}.{matrix}.weight"] for expert in experts])


def load_release(folder: Path = RELEASE) -> DemoModel:
    model = DemoModel()
    model.load_state_dict(from_release(load_file(folder / "model.safetensors")))
    return model.eval()


def write_release(state: dict[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_release(state), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    byte_tokenizer.write(folder, CONFIG["max_position_embeddings"])
    write_prompts(folder / "prompts.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--folder", type=Path, default=RELEASE)
    arguments = parser.parse_args()
    write_release(torch.load(arguments.checkpoint)["model"], arguments.folder)


if __name__ == "__main__":
    main()
