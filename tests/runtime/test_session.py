"""`Model` and `Session` over the echo executor."""

from __future__ import annotations

import ctypes
import gc
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nextn.runtime.bindings import abi
from nextn.runtime.bindings.executor import Executor, NativeCalls
from nextn.runtime.bindings.model import Model
from nextn.runtime.bindings.session import Session
from nextn.runtime.contract.errors import ArtifactError, ExecutionError, RequestError, UsageError
from nextn.runtime.engine.interruptible import run_interruptibly
from tests.runtime.echo_artifact import EOS, damage_weights

ArtifactMaker = Callable[..., Path]


def test_an_opened_model_describes_itself(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model:
        assert (model.info.num_steps, model.info.slots, model.info.max_seq_len) == (3, 2, 512)
        assert model.manifest.model.eos_token_ids == (EOS,)


def test_a_missing_artifact_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="absent"):
        Model(tmp_path / "absent")


def test_weights_are_verified_on_request(artifact: ArtifactMaker) -> None:
    folder = artifact()
    damage_weights(folder)
    Model(folder).close()
    with pytest.raises(ArtifactError, match="weights were changed .*key body_sha256"):
        Model(folder, verify_weights=True)


def test_a_request_runs_to_its_end(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model, model.session() as session:
        first = session.submit([1, 2, 3], max_new_tokens=8)
        second = session.submit([4, EOS], max_new_tokens=8)
        assert session.result(first).finish_reason is None
        assert session.run()
        assert session.result(first).tokens == (1, 2, 3, 1, 2, 3, 1, 2)
        assert session.result(first).accept_lens == (1, 2, 3, 4)
        assert session.result(first).finish_reason == "length"
        assert session.result(second).tokens == (4, EOS)
        assert session.result(second).finish_reason == "stop"
        assert [session.next_finished(), session.next_finished(), session.next_finished()] == [2, 1, None]
        session.release(first)
        with pytest.raises(UsageError, match="no request has id 1"):
            session.result(first)


def test_prompts_longer_than_a_chunk_take_several_turns(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model, model.session(slots=1) as session:
        request = session.submit(range(20), max_new_tokens=2)
        assert session.turn()
        assert session.turn()
        assert session.result(request).tokens == ()
        assert not session.turn()
        assert session.result(request).tokens == (0, 1)


def test_run_until_finished_returns_once_per_completion(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model, model.session() as session:
        ids = [session.submit([1], max_new_tokens=count) for count in (30, 3, 9)]
        order = []
        busy = True
        while busy:
            busy = session.run_until_finished()
            order.append(session.next_finished())
            assert session.next_finished() is None
        assert order == [ids[1], ids[2], ids[0]]


def test_counters_and_timings(artifact: ArtifactMaker) -> None:
    with Model(artifact(round_us=2000)) as model, model.session(round_samples=3) as session:
        session.submit([1], max_new_tokens=11)
        session.run()
        metrics = session.metrics()
        assert metrics.num_rounds == metrics.num_row_rounds == 4
        assert metrics.num_accepted == 6
        assert metrics.accepted_at_least == (3, 2, 1, 0, 0, 0, 0, 0)
        times = session.round_times()
        assert len(times) == 3
        for one in times:
            assert one.graph_us > 2000 > one.host_us > 0
            assert (one.verify_us, one.accept_us, one.extend_us, one.step_us) == (0, 0, 0, 0)
        assert len(session.round_times(last=2)) == 2
        assert session.round_times(last=0) == []


def test_plain_decoding_accepts_one_token_a_round(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model, model.session(speculation=False) as session:
        request = session.submit([1, 2], max_new_tokens=4)
        session.run()
        assert session.result(request).accept_lens == (1, 1, 1)


@pytest.mark.parametrize("prompt", [[-1], [300], [2**64 + 1], [1.5], []])
def test_bad_prompts_are_refused_and_the_session_stays_usable(
    artifact: ArtifactMaker, prompt: list[int]
) -> None:
    with Model(artifact()) as model, model.session() as session:
        with pytest.raises(RequestError):
            session.submit(prompt, max_new_tokens=4)
        request = session.submit([7], max_new_tokens=2)
        session.run()
        assert session.result(request).tokens == (7, 7)


def test_bad_session_values_are_refused(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model, pytest.raises(UsageError, match="slots"):
        model.session(slots=3)


def test_integers_that_c_would_wrap_are_refused(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model:
        for arguments in ({"slots": 2**32 + 1}, {"slots": -1}, {"round_samples": 2**32}, {"slots": 1.0}):
            with pytest.raises(UsageError, match=f"key {next(iter(arguments))}"):
                model.session(**arguments)
        with model.session() as session:
            request = session.submit([1], max_new_tokens=1)
            for action in (session.result, session.release):
                with pytest.raises(UsageError, match="key request"):
                    action(2**64 + request)
            for field in ("max_new_tokens", "seed", "temperature"):
                with pytest.raises(RequestError, match=f"key {field}"):
                    session.submit([1], **{"max_new_tokens": 1, field: "many"})
            with pytest.raises(RequestError, match="key prompt"):
                session.submit(None, max_new_tokens=1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fails", "graph round.b1 failed"),
        ("overflows", "an impossible result .*found out_count 99"),
    ],
)
def test_a_failing_graph_raises(artifact: ArtifactMaker, fault: str, message: str) -> None:
    """With the executor's own words, or those of libnextn."""
    with Model(artifact(**{fault: "round.b1"})) as model, model.session() as session:
        session.submit([1], max_new_tokens=2)
        with pytest.raises(ExecutionError, match=message):
            session.run()


def test_the_callback_sees_every_round_and_can_abort_one_request(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model, model.session() as session:
        aborted = session.submit([1, 2, 3], max_new_tokens=8)
        kept = session.submit([4, 5], max_new_tokens=5)
        rounds: dict[int, list[list[int]]] = {aborted: [], kept: []}

        def take(request: int, tokens: list[int]) -> bool:
            rounds[request].append(tokens)
            return request == kept or len(rounds[request]) < 3

        session.run(take)
        assert rounds == {aborted: [[1], [2], [3, 1]], kept: [[4], [5], [4, 5], [4]]}
        assert session.result(aborted).finish_reason == "abort"
        assert session.result(kept).finish_reason == "length"


@pytest.mark.parametrize("method", ["run", "turn"])
def test_an_exception_in_the_callback_comes_out(artifact: ArtifactMaker, method: str) -> None:
    with Model(artifact()) as model, model.session() as session:
        session.submit([1], max_new_tokens=100)

        def fail(request: int, tokens: list[int]) -> bool:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            getattr(session, method)(fail)


def test_state_is_seen_in_place_and_released_by_close(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model:
        session = model.session(slots=1)
        view = session.state("ring")
        assert len(view) == 3 * 4 * 8 * 4
        assert not any(view)
        session.submit([7], max_new_tokens=1)
        session.run()
        assert struct.unpack_from("2f", view, 8 * 4) == (7.0, -3.5)
        with pytest.raises(UsageError, match="key nothing"):
            session.state("nothing")
        session.close()
        with pytest.raises(ValueError, match="released"):
            view[0]


def test_closing_twice_is_harmless_and_use_after_close_is_refused(artifact: ArtifactMaker) -> None:
    model = Model(artifact())
    session = model.session()
    model.close()
    model.close()
    session.close()
    session.interrupt()
    with pytest.raises(UsageError, match="session is closed"):
        session.run()
    with pytest.raises(UsageError, match="model is closed"):
        model.session()


def test_a_session_keeps_its_model_alive(artifact: ArtifactMaker) -> None:
    session = Model(artifact()).session()
    gc.collect()
    request = session.submit([1], max_new_tokens=1)
    session.run()
    assert session.result(request).tokens == (1,)


def test_other_threads_run_during_the_native_loop(
    artifact: ArtifactMaker, compile_c: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds wait in C, where no Python lets go of its lock."""
    source = tmp_path / "slow.c"
    source.write_text(
        "#include <stdbool.h>\n#include <unistd.h>\n"
        "bool slow_read(void *user, const char *name) { return user == NULL && name && !usleep(20000); }\n"
    )
    library = ctypes.CDLL(str(compile_c(source, "-fPIC", "-shared", "-D_DEFAULT_SOURCE")))

    class SlowReads(NativeCalls):
        def __init__(self, executor: Executor) -> None:
            super().__init__(executor)
            self.functions.read = abi.NamedFunction(("slow_read", library))

    monkeypatch.setattr("nextn.runtime.bindings.model.NativeCalls", SlowReads)
    with Model(artifact()) as model, model.session() as session:
        session.submit([1], max_new_tokens=40)
        progress, stop = [0], threading.Event()

        def count() -> None:
            while not stop.is_set():
                progress[0] += 1
                time.sleep(0.001)

        counter = threading.Thread(target=count)
        counter.start()
        session.run()
        stop.set()
        counter.join()
        assert progress[0] > 50


def test_interrupt_from_another_thread_ends_the_run(artifact: ArtifactMaker) -> None:
    with Model(artifact(round_us=5000)) as model, model.session() as session:
        request = session.submit([1], max_new_tokens=400)
        timer = threading.Timer(0.05, session.interrupt)
        timer.start()
        assert not session.run()
        timer.join()
        assert session.result(request).finish_reason == "abort"
        assert session.result(request).tokens


def test_work_off_the_main_thread_stays_where_it_is() -> None:
    seen: list[threading.Thread] = []
    thread = threading.Thread(
        target=lambda: run_interruptibly(lambda: seen.append(threading.current_thread()), lambda: None)
    )
    thread.start()
    thread.join()
    assert seen == [thread]


def test_failures_of_interruptible_work_come_out() -> None:
    with pytest.raises(ZeroDivisionError):
        run_interruptibly(lambda: 1 / 0, lambda: None)


def test_ctrl_c_waits_for_the_work_to_end() -> None:
    """Also one that the system delivers to another thread, which does not wake the waiting one."""
    started, interrupted = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        started.set()
        heard = interrupted.wait(10)
        time.sleep(0.1)  # the exception must wait for this too
        ended.append(heard)

    def press_ctrl_c() -> None:
        started.wait(10)
        signal.raise_signal(signal.SIGINT)

    presser = threading.Thread(target=press_ctrl_c)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(work, interrupted.set)
    presser.join()
    assert ended == [True]


@pytest.mark.parametrize("when", ["queued", "in prefill", "decoding"])
def test_a_cancelled_request_frees_its_slot_and_disturbs_nobody(artifact: ArtifactMaker, when: str) -> None:
    with Model(artifact()) as model, model.session(slots=2) as session:
        other = session.submit([1, 2, 3], max_new_tokens=40)
        session.turn()
        prompt = range(4, 24) if when == "in prefill" else [4, 5]
        doomed = session.submit(prompt, max_new_tokens=40)
        for _ in range(0 if when == "queued" else 1):
            session.turn()
        before = session.result(doomed)
        assert bool(before.tokens) == (when == "decoding")
        waiting = session.submit([7], max_new_tokens=5)
        session.cancel(doomed)
        after = session.result(doomed)
        assert (after.finish_reason, after.tokens) == ("abort", before.tokens)
        assert session.next_finished() == doomed
        assert session.run()
        assert session.result(doomed).tokens == before.tokens
        assert session.result(waiting).tokens == (7, 7, 7, 7, 7)
        assert session.result(other).tokens == tuple((1, 2, 3) * 13) + (1,)
        session.cancel(other)
        assert session.result(other).finish_reason == "length", "it had finished already"
        session.release(doomed)
        with pytest.raises(UsageError, match=f"no request has id {doomed}"):
            session.cancel(doomed)


def test_a_run_cannot_be_cancelled_from_within(artifact: ArtifactMaker) -> None:
    with Model(artifact()) as model, model.session() as session:
        request = session.submit([1], max_new_tokens=9)

        def on_tokens(_request: int, _tokens: list[int]) -> bool:
            session.cancel(request)
            return True

        with pytest.raises(UsageError, match="the session is running"):
            session.run(on_tokens)


def test_a_bounded_run_returns_after_its_time_and_goes_on(artifact: ArtifactMaker) -> None:
    """No time at all is one turn, a long time ends with the request."""
    with Model(artifact()) as model, model.session() as session:
        request = session.submit([1], max_new_tokens=11)
        runs = 1
        while session.run_for(0):
            assert session.next_finished() is None
            runs += 1
        assert runs == 1 + 4 - 1, "the prompt and the first round share a turn; 4 rounds make 10 tokens"
        assert session.next_finished() == request
        other = session.submit([1], max_new_tokens=11)
        assert not session.run_for(600_000)
        assert session.next_finished() == other
        with pytest.raises(UsageError, match="milliseconds is"):
            session.run_for(float("nan"))


def processor_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


@pytest.mark.full
@pytest.mark.parametrize("ending", ["run", "cancel", "interrupt"])
def test_many_requests_cost_no_more_each_than_few(artifact: ArtifactMaker, ending: str) -> None:
    """https://github.com/vllm-project/vllm/issues/6867: work for one request must not grow with how many are
    queued or finished, nor with the tokens it may have. A quadratic step takes 16 times as long for 4 times
    the requests, and the bound is generous for a busy machine."""

    def handle(session: Session, count: int) -> None:
        ids = [session.submit([EOS], max_new_tokens=500) for _ in range(count)]
        if ending == "run":
            session.run()
        elif ending == "cancel":
            for request in ids:
                session.cancel(request)
        else:
            session.interrupt()
            session.run()
        for request in reversed(ids):
            session.release(request)

    with Model(artifact()) as model, model.session() as session:
        few = processor_seconds(lambda: handle(session, 1_000))
        many = processor_seconds(lambda: handle(session, 4_000))
    assert many < 10 * few
