"""Requests: validated once, here, whether they come from flags, a JSON line or Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn

from nextn.runtime.bindings.integers import as_integer
from nextn.runtime.contract.blocks import TEMPERATURE_ONE
from nextn.runtime.contract.errors import ArtifactError, ExitCode, RequestError
from nextn.runtime.contract.strict_json import RepeatedKey, unique_keys
from nextn.runtime.engine.text import Tokenizer

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


class UnreadableTokenizer(RequestError):
    """A request with text, to an artifact whose tokenizer file is none."""

    exit_code = ExitCode.ARTIFACT


def checked_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as plain Python values, numpy's numbers converted.

    Raises RequestError naming the first field that is bad or not among those of `DEFAULTS`.
    """
    return {field: _checked_setting(field, value) for field, value in fields.items()}


def _checked_setting(field: str, value: Any) -> Any:
    if field not in DEFAULTS:
        raise RequestError("unknown setting", key=field, expected=f"one of {', '.join(DEFAULTS)}")
    if field in UNAVAILABLE:
        default = DEFAULTS[field]
        if isinstance(value, bool) or not isinstance(value, Real) or value != default:
            _refuse(field, default, value, f"{UNAVAILABLE[field]} is not in this build")
        return default
    expected, read = _SETTINGS[field]
    found = read(value)
    if found is None:
        _refuse(field, expected, value)
    return found


class RequestReader:
    """Turns fields into a `Request` against one artifact's limits and tokenizer."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_seq_len: int,
        tokenizer: Tokenizer | None,
        tokenizer_fault: ArtifactError | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """`defaults` replace those of `DEFAULTS`; `tokenizer_fault` says why there is no tokenizer.

        Raises RequestError for a bad default.
        """
        self._vocab_size = vocab_size
        self._max_prompt = max_seq_len - 1
        self._tokenizer = tokenizer
        self._tokenizer_fault = tokenizer_fault
        self._defaults = checked_settings({**DEFAULTS, **(defaults or {})})

    def read(self, fields: Mapping[str, Any], default_id: RequestId) -> Request:
        """A request from its fields, those of the JSON form. Raises RequestError naming the bad field.

        A field that is None is one that was not given: clients write null for what they leave open.
        """
        fields = {name: value for name, value in fields.items() if value is not None}
        for name in fields:
            if name not in DEFAULTS and name not in PROMPT_FIELDS and name != "id":
                known = ", ".join(("id", *PROMPT_FIELDS, *DEFAULTS))
                raise RequestError("bad request: unknown field", key=name, expected=f"one of {known}")
        given = fields.get("id", default_id)
        identity = request_id(given)
        if identity is None:
            _refuse("id", "a string or a 64-bit integer", given)
        settings = checked_settings(
            {name: fields.get(name, default) for name, default in self._defaults.items()}
        )
        return Request(
            id=identity,
            prompt=self._prompt(fields),
            max_new_tokens=settings["max_new_tokens"],
            temperature=settings["temperature"],
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
            self._refuse_unreadable_tokenizer("prompt")
            raise RequestError("the artifact has no tokenizer; send token_ids", key="prompt")
        if not value:
            raise RequestError("bad request", key="prompt", expected="at least 1 character", found="none")
        ids = self._tokenizer.encode(value)
        for token in ids:
            if token >= self._vocab_size:
                _refuse("prompt", f"tokens below {self._vocab_size}", token, "tokenizer and model disagree")
        return ids

    def _refuse_unreadable_tokenizer(self, field: str) -> None:
        if (fault := self._tokenizer_fault) is not None:
            raise UnreadableTokenizer(
                f"{fault.message}; send token_ids", file=fault.file, key=field, found=fault.found
            )

    def _token_ids(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list | tuple):
            _refuse("token_ids", "a list of integers", value)
        ids = []
        for index, item in enumerate(value):
            token = _integer(item, 0, self._vocab_size - 1)
            if token is None:
                _refuse(f"token_ids[{index}]", f"an integer in 0..{self._vocab_size - 1}", item)
            ids.append(token)
        return tuple(ids)

    def _stop(self, stops: tuple[str, ...]) -> tuple[str, ...]:
        if stops and self._tokenizer is None:
            self._refuse_unreadable_tokenizer("stop")
            raise RequestError("stop strings need a tokenizer and the artifact has none", key="stop")
        return stops


def request_id(value: object) -> RequestId | None:
    """`value` as an id; None if it is none."""
    return value if isinstance(value, str) else _integer(value, -INT64_MAX)


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object on one line. Raises RequestError."""
    try:
        fields = json.loads(line.decode("utf-8"), object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        raise RequestError("bad request", expected="UTF-8 text", found=error) from error
    except RepeatedKey as error:
        raise RequestError("bad request: a repeated key", key=error.key) from error
    except (ValueError, RecursionError) as error:
        raise RequestError("bad request", expected="a JSON object", found=error) from error
    if not isinstance(fields, dict):
        raise RequestError("bad request", expected="a JSON object", found=_shown(fields))
    return fields


def _integer(value: object, low: int, high: int = INT64_MAX) -> int | None:
    number = as_integer(value)
    return number if number is not None and low <= number <= high else None


def _temperature(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 <= number < TEMPERATURE_LIMIT else None


def _stops(value: object) -> tuple[str, ...] | None:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or not all(map(_is_stop_string, stops)):
        return None
    return tuple(stops)


def _is_stop_string(value: object) -> bool:
    # A lone surrogate is no text: generated text can never contain it.
    return isinstance(value, str) and value != "" and not any("\ud800" <= c <= "\udfff" for c in value)


_SETTINGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "max_new_tokens": ("an integer of at least 1", lambda value: _integer(value, 1)),
    "temperature": (f"a number of at least 0 and below {TEMPERATURE_LIMIT}", _temperature),
    "seed": (f"an integer in 0..{INT64_MAX}", lambda value: _integer(value, 0)),
    "stop": ("a non-empty string or a list of them", _stops),
    "ignore_eos": ("true or false", lambda value: value if isinstance(value, bool) else None),
}
"""What is expected of a setting, and its reader, which returns None for anything else."""


def _refuse(field: str, expected: object, found: object, message: str = "bad request") -> NoReturn:
    raise RequestError(message, key=field, expected=expected, found=_shown(found))


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except TypeError:
        text = repr(value)
    except ValueError:  # an integer beyond Python's digit limit, or a list within itself
        text = f"a {type(value).__name__} that cannot be shown"
    except RecursionError:
        text = f"a {type(value).__name__} nested too deep"
    return text if len(text) <= 60 else f"{text[:57]}..."
