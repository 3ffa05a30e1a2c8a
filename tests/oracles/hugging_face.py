"""The target model as Hugging Face transformers computes it, in fp32 and without any cache."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DeepseekV4ForCausalLM
from transformers.utils import logging as transformers_logging


@dataclass(frozen=True)
class TargetRows:
    """What one forward over T tokens gives: row i belongs to the token at position i."""

    logits: Tensor  # [T, V], predicts the token at i + 1
    streams: Tensor  # [T, M, H], after the last block and before the stream head


class HuggingFaceTarget:
    """A loaded target; every call recomputes all tokens from position 0."""

    def __init__(self, model: DeepseekV4ForCausalLM) -> None:
        self.model = model
        self.config = model.config

    @torch.no_grad()
    def forward(self, ids: list[int]) -> TargetRows:
        captured: list[Tensor] = []
        hook = self.model.model.hc_head.register_forward_pre_hook(
            lambda _module, arguments: captured.append(arguments[0])
        )
        row = torch.tensor([ids], dtype=torch.long)  # [1, T]
        try:
            # An explicit mask, because a mask inferred from a pad id would hide equal prompt tokens.
            output = self.model(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False)
        finally:
            hook.remove()
        return TargetRows(logits=output.logits[0], streams=captured[0][0])

    def target_logits(self, ids: list[int]) -> Tensor:
        """[T, V] fp32."""
        return self.forward(ids).logits


def load_target(folder: Path | str) -> HuggingFaceTarget:
    """Load a checkpoint with the release's names and config spelling; any unused or missing name fails.

    Transformers itself drops `mtp.*`, which is the only part of a checkpoint that it may leave out.
    """
    transformers_logging.disable_progress_bar()
    loaded: Any = DeepseekV4ForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        # The plain loops, rather than grouped kernels chosen by what the machine has.
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    model, report = loaded
    problems = {kind: names for kind, names in report.items() if names}
    if problems:
        raise ValueError(f"{folder}: not loaded cleanly: {problems}")
    if model.config.pad_token_id is not None and model.config.pad_token_id == model.config.bos_token_id:
        raise ValueError(f"{folder}: pad_token_id equals bos_token_id, so the first token would be masked")
    return HuggingFaceTarget(model.eval())
