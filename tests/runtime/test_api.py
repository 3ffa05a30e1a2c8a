"""`nextn.load(...).generate(...)` over the echo executor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nextn
from nextn.runtime.contract.errors import ArtifactError, ExecutionError, RequestError, UsageError
from nextn.runtime.contract.version import VERSION
from nextn.runtime.engine.completion import Completion
from nextn.runtime.engine.generation import Delta
from tests.runtime.echo_artifact import EOS

ArtifactMaker = Callable[..., Path]


def test_the_package_face_is_small() -> None:
    assert nextn.__version__ == VERSION
    assert issubclass(RequestError, nextn.NextnError)
    assert {"NextnError", "__version__", "load"} <= set(dir(nextn))
    with pytest.raises(AttributeError, match="nothing"):
        nextn.nothing  # noqa: B018


def test_text_in_text_out(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact()) as engine:
        (completion,) = engine.generate("héllo ", max_new_tokens=10)
    assert completion.text == "héllo hé"
    assert completion.token_ids == tuple("héllo hé".encode())
    assert completion.prompt_tokens == 7
    assert completion.finish_reason == "length"
    assert completion.accept_lens == (1, 2, 3, 4)
    assert completion.metrics is not None
    assert completion.metrics.num_rounds == 4


@pytest.mark.parametrize(
    ("prompts", "texts"),
    [
        ([65, 66], ["ABA"]),
        ([[65], [66]], ["AAA", "BBB"]),
        (["ab", "c"], ["aba", "ccc"]),
        ([{"prompt": "ab", "max_new_tokens": 1}, "c"], ["a", "ccc"]),
        ({"token_ids": [65]}, ["AAA"]),
        ([], []),
    ],
)
def test_prompts_come_in_many_forms(artifact: ArtifactMaker, prompts: object, texts: list[str]) -> None:
    with nextn.load(artifact()) as engine:
        completions = engine.generate(prompts, max_new_tokens=3)
    assert [completion.text for completion in completions] == texts
    assert [completion.id for completion in completions] == list(range(len(texts)))


def test_completions_keep_the_order_of_the_prompts(artifact: ArtifactMaker) -> None:
    lengths = (9, 1, 5, 2)
    with nextn.load(artifact()) as engine:
        prompts = [{"token_ids": [65], "max_new_tokens": length} for length in lengths]
        completions = engine.generate(prompts)
    assert [len(completion.token_ids) for completion in completions] == list(lengths)


def test_eos_ends_the_text_unless_ignored(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact()) as engine:
        (stopped,) = engine.generate([65, EOS], max_new_tokens=4)
        (ignored,) = engine.generate([65, EOS], max_new_tokens=4, ignore_eos=True)
    assert (stopped.text, stopped.token_ids, stopped.finish_reason) == ("A", (65, EOS), "stop")
    assert (ignored.text, ignored.token_ids, ignored.finish_reason) == ("AA", (65, EOS) * 2, "length")


def test_a_stop_string_across_rounds_cuts_text_and_ids(artifact: ArtifactMaker) -> None:
    """Rounds are l | a | zy | "do": the stop needs three of them, and "o" is past it
    (https://github.com/vllm-project/vllm/issues/23938, https://github.com/sgl-project/sglang/issues/23802)."""
    with nextn.load(artifact()) as engine:
        (completion,) = engine.generate("lazydog", max_new_tokens=50, stop="azyd")
    assert completion.text == "l"
    assert completion.token_ids == tuple(b"lazyd")
    assert completion.finish_reason == "stop"
    assert completion.accept_lens == (1, 2, 3)


@pytest.mark.parametrize(
    ("max_new_tokens", "text", "reason"),
    [(4, "lazy", "length"), (5, "l", "stop"), (6, "l", "stop")],
    ids=["limit first", "both at once", "stop first"],
)
def test_stop_and_limit_in_one_round(
    artifact: ArtifactMaker, max_new_tokens: int, text: str, reason: str
) -> None:
    """A limit must not mask a stop within it (https://github.com/sgl-project/sglang/issues/31599)."""
    with nextn.load(artifact()) as engine:
        (completion,) = engine.generate("lazydog", max_new_tokens=max_new_tokens, stop=["azyd"])
    assert (completion.text, completion.finish_reason) == (text, reason)


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [([65, 66, EOS, 67], "AB", 3), ([65, 66, 67, EOS], "A", 3)],
    ids=["EOS first", "stop first"],
)
def test_stop_and_eos_in_either_order(
    artifact: ArtifactMaker, prompt: list[int], text: str, ids: int
) -> None:
    with nextn.load(artifact()) as engine:
        (completion,) = engine.generate(prompt, stop="BC")
    assert (completion.text, completion.finish_reason) == (text, "stop")
    assert completion.token_ids == tuple(prompt[:ids])


def test_one_stopped_request_does_not_stop_the_others(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact()) as engine:
        stopped, free = engine.generate([{"prompt": "abc", "stop": "ca"}, "xyz"], max_new_tokens=9)
    assert (stopped.text, stopped.finish_reason) == ("ab", "stop")
    assert (free.text, free.finish_reason) == ("xyzxyzxyz", "length")


@pytest.mark.parametrize("stop", [(), ("\u6f22a",)])
def test_deltas_add_up_to_the_text(artifact: ArtifactMaker, stop: tuple[str, ...]) -> None:
    deltas: list[Delta] = []
    with nextn.load(artifact()) as engine:
        prompt = "a\U0001f469\u200d\U0001f467\u6f22"
        (completion,) = engine.generate(prompt, max_new_tokens=31, stop=stop, on_delta=deltas.append)
    assert "".join(delta.text or "" for delta in deltas) == completion.text
    assert sum((delta.token_ids for delta in deltas), ()) == completion.token_ids
    assert all("\ufffd" not in (delta.text or "") for delta in deltas[:-1])


def test_a_delta_callback_can_abort_its_request(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact()) as engine:
        aborted, other = engine.generate(
            ["ab", "c"], max_new_tokens=6, on_delta=lambda delta: delta.request == 1
        )
    assert (aborted.finish_reason, aborted.token_ids) == ("abort", (97,))
    assert (other.finish_reason, other.text) == ("length", "cccccc")


def test_an_exception_in_a_delta_callback_comes_out_and_the_engine_survives(artifact: ArtifactMaker) -> None:
    def fail(delta: Delta) -> bool:
        raise ZeroDivisionError

    with nextn.load(artifact()) as engine:
        with pytest.raises(ZeroDivisionError):
            engine.generate("ab", on_delta=fail)
        assert engine.generate("ab", max_new_tokens=2)[0].text == "ab"


def test_completions_are_reported_in_the_order_they_finish(artifact: ArtifactMaker) -> None:
    reported: list[Completion] = []
    with nextn.load(artifact()) as engine:
        reader = engine.request_reader()
        requests = [
            reader.read({"token_ids": [65], "max_new_tokens": length}, default_id=name)
            for name, length in (("long", 20), ("short", 2), ("shorter", 1))
        ]
        run = engine.run(requests, on_completion=reported.append)
    assert [completion.id for completion in reported] == ["short", "shorter", "long"]
    assert [completion.id for completion in run.completions] == ["long", "short", "shorter"]


def test_each_run_has_its_own_figures(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact()) as engine:
        requests = [engine.request_reader(max_new_tokens=11).read({"prompt": "a"}, 1)]
        first, second = engine.run(requests).metrics, engine.run(requests).metrics
    assert first.num_rounds == second.num_rounds == 4
    assert second.generated_tokens == 11
    assert second.acceptance.mean_acceptance_length == 2.5
    assert second.num_draft_forwards.extend == 4
    assert second.num_draft_forwards.step == 8
    assert set(second.round_us) == {"graph_us", "host_us"}


def test_no_speculation_means_k_is_zero(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact(), speculation=False) as engine:
        run = engine.run([engine.request_reader(max_new_tokens=3).read({"prompt": "a"}, 1)])
    assert run.completions[0].accept_lens == (1, 1)
    assert run.metrics.acceptance.mean_acceptance_length == 1.0
    assert run.metrics.acceptance.draft_acceptance_rate is None


def test_phases_add_their_timings(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact(), phases=True) as engine:
        metrics = engine.run([engine.request_reader(max_new_tokens=3).read({"prompt": "a"}, 1)]).metrics
    assert {"verify_us", "accept_us", "extend_us", "step_us"} <= set(metrics.round_us)
    with pytest.raises(UsageError, match="phases need speculation"):
        nextn.load(artifact(num_steps=0), phases=True)


def test_nothing_runs_if_one_request_is_bad(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact()) as engine:
        with pytest.raises(RequestError, match=r"token_ids\[0\]"):
            engine.generate([[1], [-1]])
        with pytest.raises(RequestError, match="key temperature"):
            engine.generate("a", temperature=-1)


def test_an_artifact_without_a_tokenizer_gives_ids_only(artifact: ArtifactMaker) -> None:
    deltas: list[Delta] = []
    with nextn.load(artifact(tokenizer=False)) as engine:
        (completion,) = engine.generate([1, 2], max_new_tokens=3, on_delta=deltas.append)
    assert (completion.text, completion.token_ids) == (None, (1, 2, 1))
    assert {delta.text for delta in deltas} == {None}


def test_a_damaged_tokenizer_file_is_refused(artifact: ArtifactMaker) -> None:
    folder = artifact()
    with (folder / "tokenizer.json").open("r+") as file:
        file.write(" ")
    with pytest.raises(ArtifactError, match="tokenizer.json"):
        nextn.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match="No such file"):
        nextn.load(folder)


def test_after_a_failed_graph_the_engine_raises_each_time(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact(fails="round.b1")) as engine:
        for _ in range(2):
            with pytest.raises(ExecutionError, match="graph round.b1 failed"):
                engine.generate("a")


def test_calls_from_several_threads_take_turns(artifact: ArtifactMaker) -> None:
    texts: dict[str, str | None] = {}
    with nextn.load(artifact(round_us=1000)) as engine:

        def generate(prompt: str) -> None:
            texts[prompt] = engine.generate(prompt, max_new_tokens=4)[0].text

        threads = [threading.Thread(target=generate, args=(prompt,)) for prompt in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == {"a": "aaaa", "b": "bbbb", "c": "cccc"}


@pytest.mark.parametrize("prompts", ["ab", ["ab", "c"]])
@pytest.mark.parametrize("misuse", ["close the engine", "close the model", "generate again"])
def test_a_callback_cannot_use_its_own_engine(
    artifact: ArtifactMaker, prompts: str | list[str], misuse: str
) -> None:
    """Freeing what is running would crash, and a nested call would wait for itself."""
    with nextn.load(artifact()) as engine:
        actions: dict[str, Callable[[], object]] = {
            "close the engine": engine.close,
            "close the model": engine.model.close,
            "generate again": lambda: engine.generate("b"),
        }
        with pytest.raises(UsageError, match="callback|running"):
            engine.generate(prompts, max_new_tokens=6, on_delta=lambda delta: actions[misuse]() is None)
        assert engine.generate("ab", max_new_tokens=2)[0].text == "ab"


def test_closing_from_another_thread_ends_the_call(artifact: ArtifactMaker) -> None:
    started = threading.Event()
    engine = nextn.load(artifact(round_us=1000))
    failures: list[BaseException] = []

    def generate() -> None:
        try:
            engine.generate("a", max_new_tokens=400, on_delta=lambda delta: started.set() is None)
        except UsageError as error:
            failures.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    assert started.wait(10)
    engine.close()
    thread.join(10)
    assert "closed" in str(failures[0])


def test_prompts_from_a_generator_are_all_continued(artifact: ArtifactMaker) -> None:
    with nextn.load(artifact()) as engine:
        completions = engine.generate((prompt for prompt in "ab"), max_new_tokens=2)
    assert [completion.text for completion in completions] == ["aa", "bb"]


@pytest.mark.parametrize(
    "prompts", [np.array([65, 66]), [np.int64(65), np.int32(66)], [np.array([65, 66], np.uint8)]]
)
def test_numpy_numbers_are_numbers(artifact: ArtifactMaker, prompts: object) -> None:
    with nextn.load(artifact(), slots=np.int64(2)) as engine:
        (completion,) = engine.generate(
            prompts, max_new_tokens=np.int64(3), seed=np.uint8(0), temperature=np.float32(0)
        )
    assert (completion.text, completion.token_ids) == ("ABA", (65, 66, 65))
    assert all(type(token) is int for token in completion.token_ids)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"prompts": None}, "prompts"),
        ({"prompts": 65}, "prompts"),
        ({"prompts": b"ab"}, "prompts"),
        ({"prompts": [b"ab"]}, "token_ids"),
        ({"prompts": [5.5]}, "token_ids"),
        ({"prompts": [[1.0]]}, r"token_ids\[0\]"),
        ({"prompts": [[2**64 + 65]]}, r"token_ids\[0\]"),
        ({"prompts": "a", "stop": 5}, "stop"),
        ({"prompts": "a", "stop": None}, "stop"),
        ({"prompts": "a", "stop": [5]}, "stop"),
        ({"prompts": "a", "max_new_tokens": None}, "max_new_tokens"),
        ({"prompts": "a", "max_new_tokens": 2**64 + 1}, "max_new_tokens"),
        ({"prompts": "a", "seed": 10**5000}, "seed"),
        ({"prompts": "a", "temperature": "hot"}, "temperature"),
        ({"prompts": {"prompt": "a", "id": 1.5}}, "id"),
        ({"prompts": {"prompt": "a", "id": 10**5000}}, "id"),
        ({"prompts": [{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}]}, "id"),
        ({"prompts": [{"prompt": "a", "id": 1}, "b"]}, "id"),
        ({"prompts": "a", "on_delta": 5}, "on_delta"),
    ],
)
def test_bad_arguments_are_named(artifact: ArtifactMaker, arguments: dict[str, Any], key: str) -> None:
    with nextn.load(artifact()) as engine:
        with pytest.raises((RequestError, UsageError), match=f"key {key}"):
            engine.generate(**arguments)


@pytest.mark.parametrize(
    "slots", [-1, 3, 2**32, 2**32 + 1, 2**64, pytest.param(10**5000, id="huge"), 1.5, "2", None, True]
)
def test_slots_that_do_not_fit_are_refused_when_loading(artifact: ArtifactMaker, slots: Any) -> None:
    with pytest.raises(UsageError, match="key slots"):
        nextn.load(artifact(), slots=slots)


@pytest.mark.parametrize("directory", [None, 5, "/a\0b", b"/a\0b", "\ud800", ["a"]])
def test_what_is_no_path_is_refused(directory: Any) -> None:
    with pytest.raises(UsageError, match="key directory, expected a path"):
        nextn.load(directory)
