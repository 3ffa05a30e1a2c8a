"""Requests: validated once, here, whether they come from flags, a JSON line or Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from nextn.runtime.contract.blocks import TEMPERATURE_ONE
from nextn.runtime.contract.errors import RequestError
from nextn.runtime.text import Tokenizer

RequestId = int | str

TEMPERATURE_LIMIT = (1 << 31) // TEMPERATURE_ONE
"""Temperatures stay below this, so that their fixed-point form fits 32 bits."""

INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it; made by `RequestReader`, which vouches for the values."""

    id: RequestId
    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...]
    ignore_eos: bool


DEFAULTS: dict[str, Any] = {
    "max_new_tokens": 128,
    "temperature": 0.0,
    "seed": 0,
    "stop": (),
    "ignore_eos": False,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "logprobs": 0,
}

UNAVAILABLE = {
    "top_k": "top-k sampling",
    "top_p": "top-p sampling",
    "min_p": "min-p sampling",
    "logprobs": "logprobs",
}
"""Fields whose feature this build lacks: only their default value is accepted."""

PROMPT_FIELDS = ("prompt", "token_ids", "messages")


def check_settings(fields: Mapping[str, Any]) -> None:
    """Raises RequestError naming the first bad field among those of `DEFAULTS`."""
    for field, value in fields.items():
        if field in UNAVAILABLE:
            if isinstance(value, bool) or value != DEFAULTS[field]:
                _refuse(field, DEFAULTS[field], value, f"{UNAVAILABLE[field]} is not in this build")
        elif field in _EXPECTED:
            expected, accepts = _EXPECTED[field]
            if not accepts(value):
                _refuse(field, expected, value)


class RequestReader:
    """Turns fields into a `Request` against one artifact's limits and tokenizer."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_seq_len: int,
        tokenizer: Tokenizer | None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """`defaults` replace those of `DEFAULTS`. Raises RequestError for a bad default."""
        self._vocab_size = vocab_size
        self._max_prompt = max_seq_len - 1
        self._tokenizer = tokenizer
        self._defaults = {**DEFAULTS, **(defaults or {})}
        check_settings(self._defaults)

    def read(self, fields: Mapping[str, Any], default_id: RequestId) -> Request:
        """A request from its fields, those of the JSON form. Raises RequestError naming the bad field."""
        for name in fields:
            if name not in DEFAULTS and name not in PROMPT_FIELDS and name != "id":
                known = ", ".join(("id", *PROMPT_FIELDS, *DEFAULTS))
                raise RequestError("bad request: unknown field", key=name, expected=f"one of {known}")
        identity = fields.get("id", default_id)
        if not is_request_id(identity):
            _refuse("id", "a string or an integer", identity)
        settings = {name: fields.get(name, default) for name, default in self._defaults.items()}
        check_settings(settings)
        return Request(
            id=identity,
            prompt=self._prompt(fields),
            max_new_tokens=settings["max_new_tokens"],
            temperature=float(settings["temperature"]),
            seed=settings["seed"],
            stop=self._stop(settings["stop"]),
            ignore_eos=settings["ignore_eos"],
        )

    def _prompt(self, fields: Mapping[str, Any]) -> tuple[int, ...]:
        given = [name for name in PROMPT_FIELDS if name in fields]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RequestError("bad request", expected="exactly one of prompt, token_ids", found=found)
        field = given[0]
        value = fields[field]
        if field == "messages":
            raise RequestError("chat messages are not in this build; send prompt or token_ids", key=field)
        ids = self._encode(value) if field == "prompt" else self._token_ids(value)
        if not 1 <= len(ids) <= self._max_prompt:
            raise RequestError(
                "bad request", key=field, expected=f"1..{self._max_prompt} tokens", found=f"{len(ids)} tokens"
            )
        return ids

    def _encode(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, str):
            _refuse("prompt", "a string", value)
        if self._tokenizer is None:
            raise RequestError("the artifact has no tokenizer; send token_ids", key="prompt")
        if not value:
            raise RequestError("bad request", key="prompt", expected="at least 1 character", found="none")
        ids = self._tokenizer.encode(value)
        for token in ids:
            if token >= self._vocab_size:
                _refuse("prompt", f"tokens below {self._vocab_size}", token, "tokenizer and model disagree")
        return ids

    def _token_ids(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list | tuple):
            _refuse("token_ids", "a list of integers", value)
        expected = f"an integer in 0..{self._vocab_size - 1}"
        for index, token in enumerate(value):
            if not _is_integer(token, 0, self._vocab_size - 1):
                _refuse(f"token_ids[{index}]", expected, token)
        return tuple(value)

    def _stop(self, value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
        stops = (value,) if isinstance(value, str) else tuple(value)
        if stops and self._tokenizer is None:
            raise RequestError("stop strings need a tokenizer and the artifact has none", key="stop")
        return stops


def is_request_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object on one line. Raises RequestError."""
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError("bad request", expected="UTF-8 text", found=error) from error
    except (ValueError, RecursionError) as error:
        raise RequestError("bad request", expected="a JSON object", found=error) from error
    if not isinstance(fields, dict):
        raise RequestError("bad request", expected="a JSON object", found=_shown(fields))
    return fields


def _is_integer(value: object, low: int, high: int = INT64_MAX) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_temperature(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value < TEMPERATURE_LIMIT


def _is_stop(value: object) -> bool:
    stops = [value] if isinstance(value, str) else value
    return isinstance(stops, list | tuple) and all(map(_is_stop_string, stops))


def _is_stop_string(value: object) -> bool:
    # A lone surrogate is no text: generated text can never contain it.
    return isinstance(value, str) and value != "" and not any("\ud800" <= c <= "\udfff" for c in value)


_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "max_new_tokens": ("an integer of at least 1", lambda value: _is_integer(value, 1)),
    "temperature": (f"a number of at least 0 and below {TEMPERATURE_LIMIT}", _is_temperature),
    "seed": (f"an integer in 0..{INT64_MAX}", lambda value: _is_integer(value, 0)),
    "stop": ("a non-empty string or a list of them", _is_stop),
    "ignore_eos": ("true or false", lambda value: isinstance(value, bool)),
}


def _refuse(field: str, expected: object, found: object, message: str = "bad request") -> NoReturn:
    raise RequestError(message, key=field, expected=expected, found=_shown(found))


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} nested too deep"
    return text if len(text) <= 60 else f"{text[:57]}..."
