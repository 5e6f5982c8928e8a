"""The exercises and their judge: what is right passes, what is wrong is told why, and nothing hangs or leaks."""

import ast
import inspect
import re
import sys
import threading
import time as clock
from fractions import Fraction
from itertools import permutations

import pytest

import d2lps
from d2lps import Plan, PlanError, Send, aggregate_at, bidirectional_ring, check_exercise, cost, sharded, solution, tree
from d2lps.course.grading import _ASKED, _failed, attempt, course, mistakes
from d2lps.course.grading.attempt import Counts, judge
from d2lps.course.grading.course import ExerciseError, exercise, exercises
from d2lps.course.grading.deadline import Overtime, within
from d2lps.course.grading.verdict import Verdict
from d2lps.messages import LANGUAGES, sentences

IDS = ("own-gpu", "overlap", "split", "both-ways", "few-steps", "labels", "unequal-links", "beyond-sums")
SUMS = ("own-gpu", "overlap", "split")  # of chapter 01
STORE = ("push-pull", "placement", "count-workers", "sparse-pull")  # judged in test_exercises_kvstore
PLANNED = (*SUMS, "both-ways", "few-steps", "unequal-links")  # whose answers return a plan


def to_the_middle(gpus, bandwidths, chunks):
    """Cut at the slowest link; the chunks meet in the middle of the row and go back to both ends."""
    cut = gpus.index(min(gpus, key=bandwidths.get)) + 1
    row, middle = gpus[cut:] + gpus[:cut], len(gpus) // 2
    depth, keys = max(middle, len(gpus) - 1 - middle), [f"g{c}" for c in range(chunks)]
    steps = [[] for _ in range(chunks + 2 * depth)]
    for c, key in enumerate(keys):
        for i in range(len(row)):
            if i != middle:
                near, away = row[i + 1 if i < middle else i - 1], abs(i - middle)
                steps[c + depth - away].append(Send(row[i], near, key))
                steps[c + depth + away - 1].append(Send(near, row[i], key, "copy"))
    return Plan(gpus, dict.fromkeys(keys, Fraction(1, chunks)), steps)


def searched(table):
    """The widest ring by going through all orders, from the table's words alone."""
    rows = [line.split() for line in table.splitlines()]
    gpus = [word.lower() for word in rows[0] if word.startswith("GPU")]
    wide = {}
    for name, *cells in rows[1 : len(gpus) + 1]:
        for other, code in zip(gpus, cells, strict=False):
            wide[name.lower(), other] = int(code[2:]) if code.startswith("NV") else 0
    orders = [(gpus[0], *rest) for rest in permutations(gpus[1:])]
    return list(max(orders, key=lambda order: min(wide[hop] for hop in zip(order, order[1:] + order[:1], strict=True))))


def log_sum_exp():
    import torch

    return d2lps.Reduction("log of a sum", torch.logaddexp, float("-inf"))


EQUIVALENT = {
    "own-gpu": sharded,
    "overlap": aggregate_at,
    "split": lambda gpus, servers: sharded(
        gpus, {name: Fraction(rate) / Fraction(sum(servers.values())) for name, rate in servers.items()}
    ),
    "both-ways": bidirectional_ring,
    "few-steps": tree,
    "labels": searched,
    "unequal-links": to_the_middle,
    "beyond-sums": log_sum_exp,
}
WRONG = [
    pytest.param(id, mistake, answer, id=f"{id} {mistake} {i}")
    for id in IDS
    for mistake, answers in exercise(id).solutions()["WRONG"][id].items()
    for i, answer in enumerate(answers, 1)
]
# Nothing can be played of a plan that could not be read, or whose very first step is to blame.
NOT_PLAYED = {
    "inexact",
    "share-sum",
    "unknown-name",
    "to-itself",
    "overwritten",
    "twice",
    "not-an-order",
    "nothing-returned",
    "raised",
    "wrong-identity",
    "changes-them",
    "not-like-them",
    "not-a-reduction",
}
MAYBE_PLAYED = {"counted-twice", "too-early", "not-general", "no-link", "other-nodes"}


@pytest.fixture(autouse=True)
def _fresh():
    _failed.clear()
    d2lps.speak("en")
    yield
    _failed.clear()
    d2lps.speak("en")


def cell(code: str) -> Verdict:
    """What a notebook shows of a cell: the value of its last expression."""
    *body, last = ast.parse(code).body
    names = {"d2lps": d2lps, "Plan": Plan, "Send": Send, "Fraction": Fraction}  # what the lessons import
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_judge_and_the_course_know_the_same_exercises():
    assert set(_ASKED) == set(exercises()) == {*IDS, *STORE}
    assert d2lps.check_exercise is check_exercise and d2lps.solution is solution


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("id", IDS)
def test_the_stub_is_told_what_to_do_first(id, language):
    d2lps.speak(language)
    for _ in range(3):
        verdict = cell(exercise(id).stub)
        assert (verdict.passed, verdict.mistake, verdict.ladder, verdict.trace) == (False, "todo", (), None)
        assert verdict.hint == exercise(id).hint("todo")


@pytest.mark.parametrize("id", IDS)
def test_the_stub_is_a_cell_of_the_lesson(id):
    texts = exercise(id)
    assert texts.stub.count("# TODO") == 1 and texts.stub.count("#") == 1
    assert texts.stub.endswith(f'd2lps.check_exercise("{id}", {id.replace("-", "_")})')
    assert list(inspect.signature(texts.solution(id)).parameters) == list(_ASKED[id].parameters)
    assert f"def {id.replace('-', '_')}({', '.join(_ASKED[id].parameters)}):" in texts.stub
    lesson = (texts.folder / "lesson.py").read_text("utf-8") if (texts.folder / "lesson.py").is_file() else ""
    if f"# %% exercise-{id}\n" in lesson:
        found = lesson.split(f"# %% exercise-{id}\n")[1].split("\n# %% ")[0]
        assert found.strip() == texts.stub


@pytest.mark.parametrize("id", IDS)
def test_the_solution_is_shown_and_stands_in_no_stub(id):
    shown = solution(id)
    assert isinstance(shown, d2lps.view.tables.Source) and shown.code.startswith(f"def {id.replace('-', '_')}(")
    stub = [line.strip() for line in exercise(id).stub.splitlines()]
    secret = [line.strip() for line in shown.code.splitlines()[1:] if "return" not in line and "def " not in line]
    assert secret and not set(secret) & set(stub)
    called = {
        node.func.id
        for node in ast.walk(ast.parse(shown.code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert ({"Plan", "Send"} <= called) == (id in PLANNED)
    assert not called & {name for name in exercise(id).solutions() if name not in ("Plan", "Send", "Fraction")}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("id", IDS)
def test_the_solution_passes(id, language):
    d2lps.speak(language)
    for answer in (exercise(id).solution(id), EQUIVALENT[id]):
        verdict = check_exercise(id, answer)
        assert verdict.passed, verdict
        assert (verdict.hint, verdict.ladder, verdict.mistake) == ("", (), None)
        if id in PLANNED:
            assert verdict.trace.plan == answer(*_ASKED[id].cases[0].arguments)
        assert verdict == check_exercise(id, answer)


def test_success_tells_what_was_measured():
    said = {id: check_exercise(id, EQUIVALENT[id]).sentence.replace("\u00a0", " ") for id in IDS}
    assert "n = 4: 6.697 ms" in said["both-ways"] and "allows 6.697 ms" in said["both-ways"]
    assert "takes 13.36 ms: no faster" in said["both-ways"]  # one port gains nothing
    assert "64 kB take 62.56 µs, and a ring would need 140.7 µs" in said["few-steps"]
    assert "6.46 ms and the ring 2.007 ms" in said["few-steps"]
    assert "7.778 ms, 7.778 ms, 7.778 ms" in said["labels"]
    assert "10.56 ms with 16 chunks" in said["unequal-links"] and "takes 60 ms" in said["unequal-links"]
    assert said["own-gpu"].startswith("n = 4: 15 ms, and the lower bound is 15 ms.")
    assert "80 ms, 60 ms, 50 ms, 45 ms" in said["overlap"]
    assert "53.33 ms, and the lower bound is 53.33 ms" in said["split"]
    assert check_exercise("own-gpu", sharded).trace.duration == 0.015


@pytest.mark.parametrize("id, mistake, answer", WRONG)
def test_a_wrong_answer_is_told_its_mistake(id, mistake, answer):
    verdicts = []
    for language in LANGUAGES:
        d2lps.speak(language)
        _failed.clear()
        verdicts.append(check_exercise(id, answer))
    for language, verdict in zip(LANGUAGES, verdicts, strict=True):
        d2lps.speak(language)
        assert (verdict.passed, verdict.mistake) == (False, mistake), verdict.sentence
        assert verdict.hint == exercise(id).hint(mistake) and verdict.hint
        assert re.match(r"n = \d", verdict.sentence) and "{" not in verdict.sentence
        assert verdict.trace == verdicts[0].trace
    played = verdicts[0].trace
    if mistake in NOT_PLAYED:
        assert played is None
    elif mistake not in MAYBE_PLAYED:
        assert played is not None
    if played:
        assert played.origin == "shared" and played.events
        assert d2lps.Trace.from_json(played.to_json()) == played


def test_there_are_enough_wrong_answers():
    for id in IDS:
        assert len(exercise(id).solutions()["WRONG"][id]) >= 6
    listed = {mistake for id in IDS for mistake in exercise(id).solutions()["WRONG"][id]}
    for id in IDS:
        assert set(exercise(id).mistakes) - {"todo"} <= set(exercise(id).solutions()["WRONG"][id])
    named = {key.removeprefix("checks.mistake.") for key in sentences("en") if key.startswith("checks.mistake.")}
    assert {*mistakes._OF_REASON.values(), "broken-plan", "not-collected"} <= named
    assert set(mistakes._OF_REASON.values()) - {"updates"} <= listed


def test_right_values_are_not_enough():
    torch = pytest.importorskip("torch")
    gpus = [f"gpu{i}" for i in range(4)]
    for answer in (exercise("own-gpu").solutions()[name] for name in ("all_to_all", "all_to_all_in_one_piece", "ring")):
        buffers = {gpu: torch.arange(10.0) + i for i, gpu in enumerate(gpus)}
        d2lps.run(answer(gpus), buffers)
        assert all(torch.equal(buffer, 4 * torch.arange(10.0) + 6) for buffer in buffers.values())
        assert not check_exercise("own-gpu", answer).passed


def test_the_sentence_names_step_node_and_bytes():
    verdict = check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0"))
    assert verdict.sentence.replace("\u00a0", " ") == (
        "n = 4, step 1: gpu0 receives 480 MB, and 120 MB is enough. The whole takes 60 ms; the lower bound is 15 ms."
    )
    verdict = check_exercise("split", lambda gpus, servers: sharded(gpus, list(servers)))
    assert "step 1: cpu1 receives 320 MB, and 213.3 MB is enough" in verdict.sentence.replace("\u00a0", " ")
    verdict = check_exercise("overlap", lambda gpus, cpu, chunks: aggregate_at(gpus, cpu))
    assert "step 1: cpu receives 640 MB, and 160 MB is enough" in verdict.sentence.replace("\u00a0", " ")
    assert "80 ms; the lower bound is 50 ms" in verdict.sentence.replace("\u00a0", " ")


def test_a_refused_plan_is_played_up_to_the_step_to_blame():
    answer = exercise("own-gpu").solutions()["WRONG"]["own-gpu"]["counted-twice"][0]
    verdict = check_exercise("own-gpu", answer)
    assert "step 2" in verdict.sentence and verdict.trace.steps == 1
    with pytest.raises(PlanError) as refused:
        answer([f"gpu{i}" for i in range(4)])
    assert verdict.sentence == f"n = 4: {refused.value}"
    assert verdict.trace.plan.steps == refused.value.plan.steps[:1]


def test_the_ladder_is_climbed_one_rung_at_each_further_failure():
    wrong = EQUIVALENT["overlap"]
    rungs = exercise("own-gpu").ladder
    seen = [check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0")) for _ in range(len(rungs) + 3)]
    assert [len(verdict.ladder) for verdict in seen] == [*range(len(rungs) + 1), len(rungs), len(rungs)]
    assert all(verdict.ladder == rungs[: len(verdict.ladder)] for verdict in seen)
    first = seen[0]
    assert all(
        (v.sentence, v.hint, v.mistake, v.trace) == (first.sentence, first.hint, first.mistake, first.trace)
        for v in seen
    )
    assert check_exercise("split", wrong).ladder == ()  # another exercise has a ladder of its own
    assert check_exercise("own-gpu", sharded).ladder == ()
    assert check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0")).ladder == ()


@pytest.mark.parametrize("id", IDS)
def test_every_text_stands_in_three_languages(id):
    texts = exercise(id)
    rungs = {}
    for language in LANGUAGES:
        d2lps.speak(language)
        rungs[language] = texts.ladder
        assert len(texts.ladder) >= 3 and all(rung.strip() for rung in texts.ladder)
        for mistake in texts.mistakes:
            assert texts.hint(mistake).strip()
        told = dict.fromkeys(("time", "bound", "times", "allowed", "ring", "large", "large_ring"), "1 ms")
        assert texts.passed(**told).strip()
    assert len({len(each) for each in rungs.values()}) == 1
    assert len({rung for each in rungs.values() for rung in each}) == 3 * len(rungs["en"])


def test_the_messages_have_the_same_keys_and_placeholders():
    def keys(language):
        found = {key: said for key, said in sentences(language).items() if key.startswith("checks.")}
        return {key: sorted(re.findall(r"\{(\w+)\}", said)) for key, said in found.items()}

    assert keys("en") == keys("vi") == keys("zh")
    assert all(said.strip() for language in LANGUAGES for said in sentences(language).values())


def test_an_unknown_exercise_is_refused_with_the_list():
    for ask in (lambda: check_exercise("own-gpus", sharded), lambda: solution("own-gpus")):
        with pytest.raises(ExerciseError, match=", ".join(IDS)) as refused:
            ask()
        assert refused.value.reason == "unknown" and isinstance(refused.value, ValueError)


def test_an_installation_without_the_course_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(course, "CHAPTERS", tmp_path / "chapters")
    for ask in (lambda: check_exercise("own-gpu", sharded), lambda: solution("own-gpu")):
        with pytest.raises(ExerciseError, match="without the course") as refused:
            ask()
        assert refused.value.reason == "no-course"


def deep(gpus):
    return deep(gpus)


def leave(gpus):
    sys.exit("enough")


def fails_at_three(gpus):
    if len(gpus) == 3:
        raise KeyError("g3")
    return sharded(gpus)


@pytest.mark.parametrize(
    "answer, mistake, part",
    [
        (sharded(["a", "b"]), "not-callable", "Plan"),
        (None, "not-callable", "NoneType"),
        (lambda: None, "signature", "too many positional arguments"),
        (lambda gpus, cpu: None, "signature", "'cpu'"),
        (lambda gpus: None, "nothing-returned", "n = 4"),
        (lambda gpus: ..., "not-a-plan", "ellipsis"),
        (lambda gpus: [[Send("gpu0", "gpu1", "g")]], "not-a-plan", "list"),
        (lambda gpus: gpus[9], "raised", "IndexError: list index out of range"),
        (lambda gpus: Plan(gpus, {"g": 1}), "raised", "missing 1 required positional argument: 'steps'"),
        (deep, "raised", "RecursionError"),
        (leave, "raised", "SystemExit: enough"),
        (fails_at_three, "not-general", "KeyError: 'g3'"),
        (set, "not-a-plan", "set"),
        (lambda gpus: Plan("gpu0", {"g": 1}, []), "broken-plan", "list of names"),
        (lambda gpus: Plan(gpus, {"g": 1}, [["x"]]), "broken-plan", "step 1"),
        (lambda gpus: Plan(gpus, {"g": 1}, [], wants=()), "todo", "nothing is sent"),
        (
            lambda gpus: Plan(["x", "y"], {"g": 1}, [[Send("x", "y", "g")], [Send("y", "x", "g", "copy")]]),
            "other-nodes",
            "x",
        ),
        (lambda gpus: sharded(gpus[:2]), "other-nodes", "gpu2"),
        (lambda gpus: sharded(gpus, update=("sgd", {"lr": 0.1})), "updates", "weights"),
        (lambda gpus: Plan(gpus, {"g": 1}, sharded(gpus).steps), "unknown-name", "g1"),
    ],
)
def test_whatever_an_answer_does_becomes_a_sentence(answer, mistake, part):
    verdict = check_exercise("own-gpu", answer)
    assert (verdict.passed, verdict.mistake) == (False, mistake), verdict.sentence
    assert part in verdict.sentence and verdict.hint
    assert "Traceback" not in str(verdict) and "\n" not in verdict.sentence
    assert "n = " in verdict.sentence or mistake in ("not-callable", "signature")


def test_a_sum_that_is_nowhere_is_not_a_sum_not_sent_back():
    def forgetful(gpus, cpu, chunks):
        full = aggregate_at(gpus, cpu, chunks)
        steps = [[send for send in step if send.src != gpus[-1]] for step in full.steps]
        return Plan(full.nodes, full.share, steps, holds=gpus, wants=gpus)

    verdict = check_exercise("overlap", forgetful)
    assert verdict.mistake == "not-collected" and "gpu3 missing" in verdict.sentence and verdict.trace


def test_nobody_is_told_a_bound_that_was_beaten():
    for id, answers in (("split", "overlapped"), ("overlap", "other-chunks")):
        verdict = check_exercise(id, exercise(id).solutions()["WRONG"][id][answers][0])
        assert verdict.trace.duration < float(_ASKED[id].cases[0].bound) and "bound" not in verdict.sentence


def test_the_line_that_raised_is_named():
    names = {}
    exec(compile("def answer(gpus):\n    x = 1\n    return gpus[9]\n", "cell", "exec"), names)
    assert "line 3 raised IndexError" in check_exercise("own-gpu", names["answer"]).sentence


def test_an_endless_answer_is_stopped():
    beats = []

    def endless(gpus):
        if len(gpus) == 4:
            return sharded(gpus)
        while True:
            beats.append(len(gpus))
            clock.sleep(0.001)

    began = clock.monotonic()
    verdict = check_exercise("own-gpu", endless, deadline=0.3)
    assert clock.monotonic() - began < 3
    assert verdict.mistake == "endless" and verdict.sentence.startswith("n = 2: no plan after 300\u00a0ms")
    stopped = len(beats)
    clock.sleep(0.1)
    assert len(beats) == stopped


def test_an_answer_that_hangs_outside_python_does_not_hang_the_notebook():
    release = threading.Event()
    began = clock.monotonic()
    verdict = check_exercise("own-gpu", lambda gpus: release.wait(60), deadline="200 ms")
    assert clock.monotonic() - began < 5 and verdict.mistake == "endless"
    release.set()


def test_an_answer_that_catches_everything_is_stopped_too():
    def stubborn(gpus):
        for _ in range(2):
            try:
                while True:
                    pass
            except BaseException:
                continue

    verdict = check_exercise("own-gpu", stubborn, deadline=0.2)
    assert verdict.mistake == "endless"


def test_the_deadline_works_in_any_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(check_exercise("own-gpu", sharded)))
    thread.start()
    thread.join(30)
    assert verdicts[0].passed
    with pytest.raises(Overtime):
        within(0.05, lambda: clock.sleep(1))
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)


def test_an_answer_may_change_its_arguments():
    def greedy(gpus, servers):
        plan = EQUIVALENT["split"](list(gpus), dict(servers))
        gpus.clear()
        servers.clear()
        return plan

    for _ in range(2):
        assert check_exercise("split", greedy).passed
    assert _ASKED["split"].cases[0].arguments[0]

    def shrinking(gpus):
        gpus.pop()
        return sharded(gpus)

    verdicts = [check_exercise("own-gpu", shrinking) for _ in range(2)]
    assert [verdict.mistake for verdict in verdicts] == ["other-nodes"] * 2
    assert verdicts[0].sentence == verdicts[1].sentence == "n = 4: gpu3 is missing from the plan."


def test_one_gpu_needs_no_step():
    def careful(gpus):
        return Plan(gpus, {"g": 1}, []) if len(gpus) == 1 else sharded(gpus)

    assert check_exercise("own-gpu", careful).passed
    assert check_exercise("own-gpu", exercise("own-gpu").solution("own-gpu")).passed

    def no_cpu_needed(gpus, cpu, chunks):
        if len(gpus) > 1:
            return aggregate_at(gpus, cpu, chunks)
        return Plan([*gpus, cpu], {"g": 1}, [], holds=gpus, wants=gpus)

    assert check_exercise("overlap", no_cpu_needed).passed


def test_another_way_to_the_bound_is_right_too():
    def swapped_when_two(gpus):
        if len(gpus) == 2:  # whole gradients cost two GPUs no more, and only one step
            return Plan(gpus, {"g": 1}, [[Send(a, b, "g") for a in gpus for b in gpus if a != b]])
        return sharded(gpus)

    assert check_exercise("own-gpu", swapped_when_two).passed

    def finer(gpus):
        n = len(gpus)
        owners = {f"{gpu}.{half}": gpu for gpu in gpus for half in "ab"}
        collect = [Send(gpu, owner, key) for key, owner in owners.items() for gpu in gpus if gpu != owner]
        back = [Send(dst, src, key, "copy") for src, dst, key, _ in collect]
        return Plan(gpus, dict.fromkeys(owners, Fraction(1, 2 * n)), [collect, back])

    assert check_exercise("own-gpu", finer).passed


@pytest.mark.parametrize("id", SUMS)
def test_the_bounds_are_the_closed_forms(id):
    S, B = 160 * 10**6, 16 * 10**9
    for case in _ASKED[id].cases:
        n = len(case.workers)
        if id == "own-gpu":
            expected, counted = Fraction(2 * (n - 1) * S, n * B), dict.fromkeys(case.workers, Fraction(2 * (n - 1), n))
        elif id == "overlap":
            c = case.arguments[2]
            expected, counted = Fraction((c + 1) * n * S, c * B), dict.fromkeys(case.workers, 1) | {"cpu": n}
        else:
            rates = {name: Fraction(rate) for name, rate in case.arguments[1].items()}
            expected = 2 * max(n * S / sum(rates.values()), Fraction(S, B))
            counted = {name: n * rate / sum(rates.values()) for name, rate in rates.items()}
            assert all(rate.is_integer() for rate in case.arguments[1].values())
        assert case.bound == expected
        plan = exercise(id).solution(id)(*case.arguments)
        trace = cost.shared(plan, case.topology, S)
        assert trace.duration == float(expected) and (trace.steps == case.steps or n == 1)
        counts = Counts(case, plan, trace)
        for node, part in counted.items():
            assert counts.moved(node, "src") == counts.moved(node, "dst") == part
        assert judge(case, exercise(id).solution(id), _ASKED[id].diagnose) == trace
    assert {len(case.workers) for case in _ASKED["own-gpu"].cases} == {1, 2, 3, 4, 5, 8}
    assert attempt.NBYTES == S


RINGS = {"both-ways", "few-steps", "unequal-links"}
ARGUMENTS = {
    "both-ways": lambda gpus: (gpus,),
    "few-steps": lambda gpus: (gpus,),
    "unequal-links": lambda gpus: (gpus, dict.fromkeys(gpus[1:], 18e9) | {gpus[0]: 2e9}, 4),
}


@pytest.mark.parametrize("id", sorted(RINGS))
def test_a_ring_that_moves_whole_tensors_fails_although_its_values_are_right(id):
    torch = pytest.importorskip("torch")
    gpus = [f"gpu{i}" for i in range(4)]
    buffers = {gpu: torch.arange(10.0) + i for i, gpu in enumerate(gpus)}
    d2lps.run(d2lps.naive_ring(gpus), buffers)
    assert all(torch.equal(buffer, 4 * torch.arange(10.0) + 6) for buffer in buffers.values())
    verdict = check_exercise(id, lambda gpus, *more: d2lps.naive_ring(gpus))
    assert not verdict.passed and verdict.trace.plan == d2lps.naive_ring(_ASKED[id].cases[0].workers)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("id", sorted(RINGS))
def test_the_solutions_of_the_ring_chapter_add_up_sizes_that_n_does_not_divide(id, n):
    torch = pytest.importorskip("torch")
    gpus = [f"gpu{i}" for i in range(n)]
    for answer in (exercise(id).solution(id), EQUIVALENT[id]):
        buffers = {gpu: torch.arange(13.0) * (i + 1) for i, gpu in enumerate(gpus)}
        d2lps.run(answer(*ARGUMENTS[id](gpus)), buffers)
        assert all(torch.equal(buffer, torch.arange(13.0) * (n * (n + 1) // 2)) for buffer in buffers.values())


def test_the_ring_chapter_asks_for_every_number_of_nodes():
    for id in set(IDS) - set(SUMS):
        assert {len(case.workers) for case in _ASKED[id].cases} >= {1, 2, 3, 5, 8}


def test_both_ways_is_bounded_by_its_formula_and_gains_nothing_through_one_port():
    S, b, alpha = 160 * 10**6, 18 * 10**9, Fraction(5e-6)
    *cases, port = _ASKED["both-ways"].cases
    for case in cases:
        n = len(case.workers)
        assert case.allowed == 2 * (n - 1) * alpha + Fraction((n - 1) * S, n * b)
        found = cost.shared(bidirectional_ring(case.workers), case.topology, S)
        assert found.duration == pytest.approx(float(case.allowed), rel=1e-12) and found.steps == case.steps
        if n > 2:  # of two GPUs the neighbours are one and the same, and either ring fills both links
            one_way = cost.shared(d2lps.ring(case.workers), case.topology, S).duration - float(2 * (n - 1) * alpha)
            assert one_way == pytest.approx(float(Fraction(2 * (n - 1) * S, n * b)))
    both, one = (cost.shared(make(port.workers), port.topology, S) for make in (bidirectional_ring, d2lps.ring))
    assert both.duration == one.duration == pytest.approx(float(port.allowed))


def test_a_plan_that_beats_the_formula_is_right_too():
    def from_both_sides(gpus):
        """Each key is collected at its owner from both sides at once: n − 1 steps for odd n instead of 2(n − 1)."""
        n = len(gpus)
        if n % 2 == 0:
            return bidirectional_ring(gpus)
        reach, keys = n // 2, [f"g{j}" for j in range(n)]
        hops = [
            [
                (gpus[(j + side * (reach - t)) % n], gpus[(j + side * (reach - t - 1)) % n], keys[j])
                for j in range(n)
                for side in (1, -1)
            ]
            for t in range(reach)
        ]
        return Plan(
            gpus,
            dict.fromkeys(keys, Fraction(1, n)),
            [
                *([Send(*hop, "add") for hop in step] for step in hops),
                *([Send(dst, src, key, "copy") for src, dst, key in step] for step in reversed(hops)),
            ],
        )

    assert check_exercise("both-ways", from_both_sides).passed
    five = next(case for case in _ASKED["both-ways"].cases if case.label == "n = 5")
    found = cost.shared(from_both_sides(list(five.workers)), five.topology, five.nbytes)
    assert found.steps == 4 and float(five.bound) <= found.duration < float(five.allowed)


def test_few_steps_are_logarithmic_and_the_message_decides():
    for case in _ASKED["few-steps"].cases:
        n, alpha, whole = len(case.workers), Fraction(5e-6) * 2, Fraction(case.nbytes, 150 * 10**9)
        levels = (n - 1).bit_length()
        assert case.steps == 2 * levels and case.allowed == 2 * levels * (alpha + whole)
        assert case.bound == levels * alpha + Fraction(2 * (n - 1), n) * whole
        found, around = (cost.shared(make(case.workers), case.topology, case.nbytes) for make in (tree, d2lps.ring))
        assert found.duration == pytest.approx(float(case.allowed), rel=1e-12)
        if n > 3:
            assert (found.duration < around.duration) == (case.nbytes < 10**6)


def test_halving_and_doubling_is_right_where_it_can_be():
    def mixed(gpus):
        return d2lps.halving_doubling(gpus) if len(gpus) in (1, 2, 4, 8) else tree(gpus)

    assert check_exercise("few-steps", mixed).passed


def test_messages_for_one_gpu_have_to_queue():
    verdict = check_exercise("few-steps", sharded)
    assert verdict.sentence.startswith("n = 8, step 1: gpu0 receives from 7 GPUs at once") and verdict.trace.steps == 2

    def back(gpus):
        return Plan(gpus, {"g": 1}, [*tree(gpus).steps[:3], [Send(gpus[0], gpu, "g", "copy") for gpu in gpus[1:]]])

    assert check_exercise("few-steps", back).sentence.startswith("n = 8, step 4: gpu0 sends to 7 GPUs at once")


def test_the_tables_are_of_hosts_that_number_their_gpus_differently():
    cases = _ASKED["labels"].cases
    first, *others = (case for case in cases if len(case.workers) == 8)

    def nvlinks(host):
        gpus = {node for node, kind in host.kinds.items() if kind == "gpu"}
        return {(link.src, link.dst): link.count for link in host.links if {link.src, link.dst} <= gpus}

    assert nvlinks(first.topology) == nvlinks(d2lps.dgx1_v100())
    assert first.topology.kinds == d2lps.dgx1_v100().kinds
    for case in cases:
        assert case.topology == d2lps.Topology.from_nvidia_smi(case.arguments[0], nvlink="18 GB/s")
        wide = nvlinks(case.topology)
        widest = max(
            min(wide.get(hop, 0) for hop in zip(order, order[1:] + order[:1], strict=True))
            for order in permutations(case.workers)
            if order[0] == case.workers[0]
        )
        assert widest == case.width or len(case.workers) == 1
        best = cost.shared(d2lps.ring(searched(*case.arguments)), case.topology, case.nbytes)
        assert best.duration == pytest.approx(float(case.bound))
    for order in permutations((first, *others), 2):  # the right order of one is wrong on each other
        assert judged_as(order[1], searched(*order[0].arguments)) == "no-nvlink"


def judged_as(case, order):
    with pytest.raises(attempt.Failure) as failure:
        _ASKED["labels"].judge(case, lambda table: order, _ASKED["labels"].diagnose)
    return failure.value.mistake


def test_a_hop_without_nvlink_is_named_and_played():
    verdict = check_exercise("labels", lambda table: [f"gpu{i}" for i in range(8)])
    assert verdict.sentence.replace("\u00a0", " ") == (
        "n = 8: gpu3 and gpu4 have no NVLink, so their messages go gpu3→switch1→cpu0→cpu1→switch2→gpu4. "
        "The ring takes 17.5 ms; another order takes 7.778 ms."
    )
    assert verdict.trace.plan == d2lps.ring([f"gpu{i}" for i in range(8)]) and verdict.trace.duration == 0.0175
    for labels in ((1, 2, 3, 4, 5, 6, 7, 8), (1, 4, 6, 3, 5, 8, 2, 7)):
        for case in _ASKED["labels"].cases[:3]:
            assert judged_as(case, [f"gpu{label - 1}" for label in labels]) == "labels-as-ids"


def test_a_slow_link_is_best_left_out():
    for case in _ASKED["unequal-links"].cases:
        gpus, bandwidths, chunks = case.arguments
        n, rates = len(gpus), sorted(map(Fraction, bandwidths.values()))
        if n > 2:
            assert case.bound == case.nbytes / sum(rates[:2])  # both sides of the two slowest links hear of each other
            assert case.allowed == case.nbytes / rates[1] * Fraction(chunks + 2 * n - 3, chunks)
            around = cost.shared(bidirectional_ring(gpus), case.topology, case.nbytes).duration
            assert around > 1.2 * case.allowed and case.allowed >= case.bound
        solved = exercise("unequal-links").solution("unequal-links")(*case.arguments)
        found = cost.shared(solved, case.topology, case.nbytes)
        assert found.duration <= float(case.allowed) * (1 + 1e-12)
        middle = cost.shared(to_the_middle(*case.arguments), case.topology, case.nbytes)
        assert middle.duration <= found.duration


def test_a_broken_plan_without_a_link_is_a_sentence_too():
    def broken(gpus):
        return Plan(gpus, {"g": 1}, [[Send("gpu0", "gpu2", "g")], [Send("gpu2", "gpu0", "g")]])

    verdict = check_exercise("both-ways", broken)
    assert verdict.mistake == "counted-twice" and verdict.trace is None
    verdict = check_exercise("both-ways", tree)
    assert verdict.sentence == "n = 4, step 2: gpu2 sends to gpu0, and no link leads there."
    assert verdict.trace.plan.steps == tree([f"gpu{i}" for i in range(4)]).steps[:1]


def test_the_first_wrong_value_is_that_of_a_run():
    torch = pytest.importorskip("torch")
    wrong = exercise("beyond-sums").solutions()["WRONG"]["beyond-sums"]["overflow"][0]
    verdict = check_exercise("beyond-sums", wrong)
    assert verdict.sentence == "n = 8, ring, step 3: gpu1 has inf in key g7, and 88.89 would be right."
    from d2lps.course.grading.combining import gradients

    case, begun = _ASKED["beyond-sums"].cases[0], verdict.trace.plan
    assert begun.steps == case.plan.steps[:3]
    buffers = gradients(case)
    d2lps.run(begun, buffers, reduce=wrong())
    assert torch.isposinf(buffers["gpu1"][begun.slices(13)["g7"]]).any()
    two = Plan(begun.nodes, begun.share, begun.steps[:2], wants=())
    d2lps.run(two, buffers := gradients(case), reduce=wrong())
    assert not any(torch.isposinf(buffer).any() for buffer in buffers.values())


def test_an_endless_combine_is_stopped():
    pytest.importorskip("torch")

    def forever(own, arrived):
        while True:
            clock.sleep(0.001)

    verdict = check_exercise("beyond-sums", lambda: d2lps.Reduction("x", forever, 0), deadline="300 ms")
    assert verdict.mistake == "endless"


def test_the_verdict_shows_itself():
    check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0"))
    verdict = check_exercise("own-gpu", lambda gpus: owned_by_float(gpus))
    assert str(verdict) == repr(verdict) and str(verdict).startswith("✗ Not yet.\n")
    html = verdict._repr_html_()
    assert "✗ Not yet." in html and "<code>" in html and "`" not in html and 'lang="en"' in html
    assert re.search(r"<ol><li>.+</li></ol>", html)
    assert "color:" not in html.replace("border-left", "")
    right = check_exercise("own-gpu", sharded)
    assert right._repr_html_().count("<p>") == 3 and "✓ Right." in right._repr_html_()
    d2lps.speak("zh")
    assert "提示：求和" in str(check_exercise("own-gpu", lambda gpus: aggregate_at(gpus, "gpu0")))
    with pytest.raises(AttributeError):
        right.passed = False


def owned_by_float(gpus):
    return Plan(gpus, {f"<{j}>": 1 / len(gpus) for j in range(len(gpus))}, [])


def test_what_an_answer_says_is_not_html():
    def nasty(gpus):
        raise ValueError("<script>alert(1)</script>")

    assert "<script>" not in check_exercise("own-gpu", nasty)._repr_html_()


def test_printing_a_verdict_needs_no_widget():
    code = (
        "import sys, d2lps\n"
        "print(d2lps.check_exercise('own-gpu', d2lps.sharded))\n"
        "assert not {'IPython', 'anywidget', 'ipywidgets', 'torch'} & set(sys.modules)"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("✓ Right."), done.stderr


@pytest.mark.parametrize("id", IDS)
def test_the_player_takes_every_attempt(id):
    pytest.importorskip("anywidget")
    for answers in exercise(id).solutions()["WRONG"][id].values():
        trace = check_exercise(id, answers[0]).trace
        assert trace is None or "text/html" in d2lps.watch(trace)._repr_mimebundle_()[0]
