"""`Completion`: what a request came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nextn.runtime.bindings.session import SessionFinish
from nextn.runtime.contract.errors import NextnError
from nextn.runtime.engine.metrics import RequestMetrics
from nextn.runtime.engine.requests import RequestId

FinishReason = SessionFinish | Literal["error"]


@dataclass(frozen=True)
class RequestFailure:
    """Why a request was refused; `code` is the exit code it leads to."""

    code: int
    message: str


@dataclass(frozen=True)
class Completion:
    """A finished request.

    `prompt_tokens` is a count. `token_ids` are the generated tokens, EOS included, up to the token that
    completed a stop string; `text` excludes EOS and the stop string, and is None without a tokenizer.
    `accept_lens` are the tokens each round produced before trimming; the first token, from prefill, is in
    no round.
    """

    id: RequestId
    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason
    accept_lens: tuple[int, ...]
    metrics: RequestMetrics | None = None
    error: RequestFailure | None = None


def failed(request: RequestId, error: NextnError) -> Completion:
    """The completion of a request that was refused."""
    failure = RequestFailure(int(error.exit_code), str(error))
    return Completion(request, 0, (), None, "error", (), error=failure)
