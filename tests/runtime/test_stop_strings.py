"""Stop strings against a twin that sees the whole text at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.runtime.engine.request_text import RequestText
from nextn.runtime.engine.requests import Request
from nextn.runtime.engine.stop_strings import StopStrings
from nextn.runtime.engine.text import ByteDetokenizer, TokenBytes
from tests.runtime.echo_artifact import EOS, byte_level_tokenizer

TOKEN_BYTES = TokenBytes(byte_level_tokenizer())

SHORT_TEXT = st.text("ab", max_size=20)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def cut_at_first_stop(text: str, stops: list[str]) -> str | None:
    """The twin: reads prefix by prefix until one ends in a stop string; the longest such stop is cut off."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return None


def request(stop: tuple[str, ...] = (), ignore_eos: bool = False) -> Request:
    return Request(1, (1,), 16, 0.0, 0, stop, ignore_eos)


def request_text(stop: tuple[str, ...] = (), ignore_eos: bool = False) -> RequestText:
    return RequestText(request(stop, ignore_eos), ByteDetokenizer(TOKEN_BYTES), (EOS,))


@given(SHORT_TEXT, STOPS, st.data())
def test_the_cut_is_the_same_however_the_text_is_split(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    matcher = StopStrings(stops)
    shown, rest = "", text
    while rest and not matcher.matched:
        size = data.draw(st.integers(1, len(rest)))
        shown += matcher.push(rest[:size])
        rest = rest[size:]
    shown += matcher.flush()
    expected = cut_at_first_stop(text, stops)
    assert matcher.matched == (expected is not None)
    assert shown == (text if expected is None else expected)


@given(SHORT_TEXT, STOPS)
def test_tokens_end_with_the_one_that_completes_the_stop(text: str, stops: list[str]) -> None:
    stream = request_text(tuple(stops))
    shown = stream.push(text.encode())
    shown += stream.finish()
    cut = cut_at_first_stop(text, stops)
    completed = next(
        (end for end in range(len(text) + 1) if cut_at_first_stop(text[:end], stops) is not None), 0
    )
    assert stream.stopped == (cut is not None)
    assert stream.text == shown == (text if cut is None else cut)
    assert stream.tokens == list(text.encode())[: completed if cut is not None else None]


@given(st.lists(st.integers(0, 258)), STOPS, st.integers(1, 5))
def test_text_and_tokens_do_not_depend_on_rounds(tokens: list[int], stops: list[str], size: int) -> None:
    whole, by_round = request_text(tuple(stops)), request_text(tuple(stops))
    first = whole.push(tokens) + whole.finish()
    deltas = [by_round.push(tokens[start : start + size]) for start in range(0, len(tokens), size)]
    assert "".join(deltas) + by_round.finish() == first == whole.text == by_round.text
    assert whole.tokens == by_round.tokens
    assert whole.stopped == by_round.stopped


def test_a_stop_inside_one_token_cuts_the_text_inside_it() -> None:
    matcher = StopStrings(["b"])
    assert matcher.push("abc") == "a"
    assert matcher.matched
    assert matcher.flush() == ""


def test_text_that_begins_a_stop_is_held_and_released() -> None:
    matcher = StopStrings(["</s>"])
    assert [matcher.push(text) for text in ("x<", "/s", "y")] == ["x", "", "</sy"]
    assert not matcher.matched


def test_eos_is_kept_as_token_and_left_out_of_text() -> None:
    stream = request_text()
    assert stream.push([72, 105, EOS]) == "Hi"
    assert stream.tokens == [72, 105, EOS]


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_eos_between_the_halves_of_a_stop_string_does_not_hide_it(ignore_eos: bool) -> None:
    """EOS adds no text, so the tokens around it can still complete a stop string."""
    stream = request_text(("ab",), ignore_eos)
    stream.push([97, EOS, 98, 99])
    assert stream.stopped
    assert stream.text == ""


def test_a_stop_that_only_the_last_flush_completes_still_counts() -> None:
    stream = request_text(("\ufffd",))
    assert stream.push([97, 0xE6]) == "a"
    assert stream.finish() == ""
    assert stream.stopped
    assert stream.text == "a"


def test_without_a_tokenizer_only_tokens_are_kept() -> None:
    stream = RequestText(request(), None, (EOS,))
    assert stream.push([1, 2]) == ""
    assert stream.finish() == ""
    assert (stream.tokens, stream.text) == ([1, 2], None)
