from __future__ import annotations

from itertools import islice

import pytest

from cluster.engines.simulated.model import BlockPool, Job, Scheduler, Settings
from cluster.engines.simulated.text import END, StopStrings, answer, detokenize, embed, tokenize


def said(prompt: str, count: int, **more: int) -> str:
    return "".join(token.text for token in islice(answer(tokenize(prompt), **more), count))


@pytest.mark.parametrize(
    "text", ["", "Hello there,  world!\n", "héllo 你好 🙂", "a\x00b", "x" * 33]
)
def test_tokens_give_their_text_back(text: str) -> None:
    assert detokenize(tokenize(text)) == text


@pytest.mark.parametrize("prompt", ["Tell me a story", "ends in a space ", "capital of France?"])
def test_an_answer_continued_from_any_token_is_the_same_answer(prompt: str) -> None:
    whole = said(prompt, 9)
    for count in range(9):
        begun = prompt + said(prompt, count)
        assert begun + said(begun, 9 - count) == prompt + whole


def test_answers_differ_by_prompt_choice_and_seed() -> None:
    answers = {said("a", 9), said("b", 9), said("a", 9, choice=1), said("a", 9, seed=1)}
    assert len(answers) == 4


def test_the_fact_ends_with_the_end_token() -> None:
    tokens = list(islice(answer(tokenize("What is the capital of France?")), 10))
    assert "".join(token.text for token in tokens) == "The capital of France is Paris."
    assert tokens[-1] is END


def test_vectors_are_the_same_for_the_same_tokens_only() -> None:
    assert embed([1, 2]) == embed([1, 2]) != embed([1, 3])


@pytest.mark.parametrize(
    ("pieces", "stops", "include", "text", "stop"),
    [
        (["a", "b", "c"], ["x"], False, "abc", None),
        (["a", "bc", "d"], ["bc"], False, "a", "bc"),
        (["a", "b", "cd"], ["bc"], False, "a", "bc"),
        (["a", "b", "cd"], ["bc"], True, "abc", "bc"),
        (["a", "b", "d"], ["bc"], False, "abd", None),
        (["one two"], ["two", "one"], False, "", "one"),
    ],
)
def test_a_stop_string_is_found_across_tokens_and_never_leaks(
    pieces: list[str], stops: list[str], include: bool, text: str, stop: str | None
) -> None:
    watcher = StopStrings(stops, include)
    free = ""
    for piece in pieces:
        more, found = watcher.feed(piece)
        free += more
        if found:
            break
    assert (free + watcher.flush(), found) == (text, stop)


def test_kv_blocks_are_shared_by_prefix_kept_when_idle_and_evicted_oldest_first() -> None:
    pool = BlockPool(blocks=4, block_size=2)
    first, second = pool.hashes([1, 2, 3, 4]), pool.hashes([1, 2, 9, 9])
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert pool.take(first, 2) == 0
    assert pool.take(second, 2) == 1
    assert pool.used == 3
    pool.give_back(first, 2, first)
    pool.give_back(second, 2, second)
    assert pool.used == 0
    other = pool.hashes([5, 5, 6, 6])
    assert pool.take(other, 3) == 0, "three of four blocks: two idle ones had to go"
    assert pool.take(second, 3) is None, "no room while others run"
    pool.give_back(other, 3, other)
    assert pool.take(second, 2) == 1, "the beginning of the prefix outlived its end"


def scheduler(**settings: float) -> tuple[Scheduler, list[str]]:
    return Scheduler(Settings(**settings), clock=lambda: 100.0), []  # type: ignore[arg-type]


def test_jobs_start_in_order_of_arrival_within_capacity() -> None:
    engine, started = scheduler(capacity=1)
    jobs = {name: Job([1], 1, lambda name=name: started.append(name)) for name in "abc"}  # type: ignore[misc]
    for job in jobs.values():
        engine.submit(job)
    assert (started, len(engine.running), len(engine.waiting)) == (["a"], 1, 2)
    engine.finish(jobs["b"], "abort")
    engine.finish(jobs["a"], "length")
    assert started == ["a", "c"]
    assert engine.finished == {"stop": 0, "length": 1, "abort": 1, "error": 0}


def test_a_full_kv_cache_makes_jobs_wait_though_capacity_is_left() -> None:
    engine, started = scheduler(kv_blocks=4, block_size=4)
    jobs = [Job([1] * 4, 8, lambda: started.append("x")) for _ in range(2)]
    for job in jobs:
        engine.submit(job)
    assert (len(started), engine.kv_usage) == (1, 0.75)
    engine.finish(jobs[0], "length")
    assert len(started) == 2


def test_the_first_token_is_due_after_the_uncached_part_of_the_prompt() -> None:
    engine, _ = scheduler(ttft=1.0, prefill_tokens_per_s=10.0, block_size=4)
    dues = []
    for _ in range(2):
        job = Job(list(range(10)), 2, lambda: None)
        engine.submit(job)
        dues.append((job.cached, job.first_at))
        engine.finish(job, "length")
    assert dues == [(0, 102.0), (8, pytest.approx(101.2))]
    assert (engine.cache_queries, engine.cache_hits) == (20, 8)


@pytest.mark.parametrize(
    "wrong", [{"capacity": 0}, {"itl": -1.0}, {"kv_blocks": 2, "max_model_len": 33}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        Settings(**wrong)  # type: ignore[arg-type]
