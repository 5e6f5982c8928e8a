"""Schedules: values and memory are checked, and tables have the bubbles and peaks of the literature."""

import pytest

from d2lps import Send, cost, ring
from d2lps.messages import LANGUAGES, speak, spoken, unmarked
from d2lps.schedule import (
    Collective,
    Schedule,
    ScheduleError,
    Task,
    Value,
    from_csv,
    from_torch,
    gpipe,
    hybrid,
    interleaved,
    merge,
    one_f_one_b,
    pipeline,
    place,
    tensor_mlp,
    zero_bubble,
)
from d2lps.topology import Topology, both_ways

PAIR = ["gpu0", "gpu1"]
GB = 10**9


def fraction_idle(schedule):
    return 1 - len(schedule.tasks) / (len(schedule.slots()) * len(schedule.nodes))


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("micro", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("table", [gpipe, one_f_one_b])
def test_the_bubble_of_gpipe_and_1f1b_is_p_minus_1_of_m_plus_p_minus_1(table, stages, micro):
    assert fraction_idle(pipeline(table(stages, micro))) == pytest.approx((stages - 1) / (micro + stages - 1))


@pytest.mark.parametrize("stages, micro", [(4, 8), (4, 2), (3, 5), (2, 1), (1, 1)])
def test_saved_micro_batches(stages, micro):
    assert list(pipeline(gpipe(stages, micro)).peak.values()) == [micro] * stages
    peaks = [min(micro, stages - i) for i in range(stages)]
    assert list(pipeline(one_f_one_b(stages, micro)).peak.values()) == peaks
    assert list(pipeline(zero_bubble(stages, micro)).peak.values()) == [min(micro, stages)] * stages


@pytest.mark.parametrize("devices, micro, chunks", [(4, 8, 2), (2, 4, 3), (3, 6, 2), (4, 4, 1)])
def test_interleaving_divides_the_bubble_by_the_chunks(devices, micro, chunks):
    schedule = pipeline(interleaved(devices, micro, chunks))
    assert fraction_idle(schedule) == pytest.approx((devices - 1) / (chunks * micro + devices - 1))
    assert schedule.peak["gpu0"] == min(
        micro * chunks, devices * chunks + devices - 1
    )  # each chunk saves 1/v of a whole stage


@pytest.mark.parametrize("p, m, v", [(4, 1, 2), (4, 2, 3), (4, 3, 2), (5, 4, 3), (2, 1, 4)])
def test_with_fewer_micro_batches_than_devices_interleaving_idles_longer(p, m, v):
    slots = len(pipeline(interleaved(p, m, v)).slots())
    assert slots == 2 * (v * p + m - 1) > 2 * (v * m + p - 1)


@pytest.mark.parametrize("p, m, v", [(2, 4, 2), (4, 8, 2), (4, 8, 4), (3, 6, 3), (5, 5, 2)])
def test_a_shorter_warm_up_of_interleaving_saves_less_and_costs_time_only_if_messages_do(p, m, v):
    """Megatron-LM's warm-up saves p + (p−1)/v micro-batches on device 0, the shorter one p."""
    usual, short = interleaved(p, m, v), {}
    for device, row in usual.items():
        forward, backward = ([cell for cell in row if cell[0] == kind] for kind in "FB")
        ahead = p - device - 1 + (v - 1) * p + 1
        late = [*forward[ahead:], *[None] * ahead]
        short[device] = forward[:ahead] + [cell for pair in zip(backward, late, strict=True) for cell in pair if cell]
    usual, short = pipeline(usual), pipeline(short)
    assert len(usual.slots()) == len(short.slots()) == 2 * (v * m + p - 1)
    assert (usual.peak["gpu0"], short.peak["gpu0"]) == (min(v * m, v * p + p - 1), v * p)
    gpus = [f"gpu{i}" for i in range(p)]
    pairs = {tuple(sorted((i, (i + 1) % p))) for i in range(p)}
    links = [link for i, j in pairs for link in both_ways(gpus[i], gpus[j], "1 GB/s", latency=0.5)]
    far = Topology("far", dict.fromkeys(gpus, "gpu"), links)
    assert cost.shared(usual, far).duration < cost.shared(short, far).duration


def zero_bubble_idle(p, m, F, I, W):  # noqa: E741
    work = {"F": F, "I": I, "W": W}
    return cost.shared(pipeline(zero_bubble(p, m), work)).duration - m * (F + I + W)


@pytest.mark.parametrize("p, m", [(1, 1), (2, 2), (3, 5), (4, 4), (4, 8), (5, 7)])
def test_zero_bubble_fills_the_bubble_with_gradients_of_weights(p, m):
    for F, I, W in ((1, 1, 1), (2, 1, 0.5), (1, 0.7, 0.7), (3, 1, 0)):  # noqa: E741
        assert zero_bubble_idle(p, m, F, I, W) == pytest.approx((p - 1) * (F + I - W))
    # A gradient of weights that takes longer than F or I delays them.
    for F, I, W in ((1, 0.7, 1.3), (0.5, 1, 1), (0.2, 1, 0.9), (0.1, 0.2, 3)):  # noqa: E741
        assert zero_bubble_idle(p, m, F, I, W) == pytest.approx((p - 1) * max(F, I))


@pytest.mark.parametrize("p, m", [(2, 1), (3, 2), (4, 2), (5, 4)])
def test_with_fewer_micro_batches_than_stages_zero_bubble_idles_longer(p, m):
    assert zero_bubble_idle(p, m, 1, 1, 1) > p - 1


def test_json_gives_an_equal_schedule_back():
    for schedule in (pipeline(zero_bubble(3, 4)), tensor_mlp(PAIR, 2, 4, 8)):
        again = Schedule.from_json(schedule.to_json())
        assert again == schedule and hash(again) == hash(schedule) and again.peak == schedule.peak
    with pytest.raises(ScheduleError, match="not a schedule that d2lps wrote"):
        Schedule.from_json("[]")


def test_a_column_is_the_program_of_a_device():
    schedule = pipeline(one_f_one_b(2, 1))
    assert [str(act) for act in schedule.column("gpu0")] == ["gpu0 F0.0", "gpu0→gpu1 =x1.0", "gpu0 B0.0"]
    with pytest.raises(ScheduleError, match="gpu7 is not in the schedule"):
        schedule.column("gpu7")


# ---------------------------------------------------------------- refusals

VALUES = {"x": Value(4), "y": Value(4, ("a", "b")), "z": Value(4)}
F = Task("gpu0", "F", "0", 0, ("x",), (("y", "a"),))


@pytest.mark.parametrize(
    "acts, sentence",
    [
        ([Task("gpu1", "F", "0", 0, ("x",))], r"act 1 \(gpu1 F0.0\): x is not on gpu1"),
        ([F, Task("gpu0", "F", "1", 0, ("y",))], r"act 2 \(gpu0 F1.0\): y on gpu0 lacks b"),
        ([F, F], r"act 2 \(gpu0 F0.0\): y on gpu0 counts a twice"),
        ([F, F._replace(makes=(("y", "c"),))], "c is no contribution to y"),
        ([F._replace(makes=("w",))], "the schedule has no value w"),
        ([Task("gpu0", "F", "0", 0, frees=("z",))], "gpu0 frees z, which it does not have"),
        ([Send("gpu0", "gpu1", "z")], "z is not on gpu0"),
        ([Send("gpu0", "gpu5", "x")], "names a device that is not in the schedule"),
        ([F, Send("gpu0", "gpu1", "y", "copy"), Send("gpu1", "gpu0", "y", "add")], "y on gpu0 counts a twice"),
        (["F"], "'F' is not a Task"),
        ([F], "at the end y on gpu0 lacks b"),
    ],
)
def test_a_broken_schedule_is_refused_with_act_device_and_value(acts, sentence):
    with pytest.raises(ScheduleError, match=sentence):
        Schedule(PAIR, VALUES, acts, holds=[("gpu0", "x")], wants=[("gpu0", "y")])


def test_a_collective_needs_its_value_everywhere_and_adds_up():
    values = {"g": Value(8, PAIR)}
    made = [Task(node, "B", "0", None, (), (("g", node),)) for node in PAIR]
    wants = [(node, "g") for node in PAIR]
    Schedule(PAIR, values, [*made, Collective(ring(PAIR), "g")], wants=wants)
    with pytest.raises(ScheduleError, match=r"act 2 \(gpu0,gpu1 ∑g\): g is not on gpu1"):
        Schedule(PAIR, values, [made[0], Collective(ring(PAIR), "g")])
    with pytest.raises(ScheduleError, match="counts gpu0 gpu1 twice"):
        Schedule(PAIR, values, [*made, Collective(ring(PAIR), "g"), Collective(ring(PAIR), "g")])


def test_a_row_parallel_bias_that_every_rank_adds_is_counted_twice():
    values = {"y": Value(8, (*PAIR, "bias"))}
    acts = [Task(node, "F", "0", None, (), (("y", node), ("y", "bias"))) for node in PAIR]
    with pytest.raises(ScheduleError, match="y on gpu1 counts bias twice"):
        Schedule(PAIR, values, [*acts, Collective(ring(PAIR), "y")])


def test_memory_has_a_limit():
    with pytest.raises(ScheduleError, match=r"act 7 \(gpu0 F0.3\): with s0.3, gpu0 needs 4 bytes but has 3"):
        pipeline(gpipe(2, 4), memory={"gpu0": 3})
    pipeline(one_f_one_b(2, 4), memory={"gpu0": 2, "gpu1": 1})


@pytest.mark.parametrize(
    "table, sentence",
    [
        ({0: [("F", 0), ("B", 0)], 1: [("B", 0), ("F", 0)]}, "gpu1 waits with B1.0 for s1.0, which gpu1 brings later"),
        ({0: [("B", 0), ("F", 0)], 1: [("F", 0), ("B", 0)]}, "gpu0 waits with B0.0 for s0.0.*gpu1 waits with F1.0"),
        ({0: [("F", 0), ("B", 0)], 1: [("F", 0)]}, "gpu1 never does B1.0"),
        ({0: [("F", 0), ("B", 0)], 1: [("B", 0)]}, "gpu1 does B1.0 without F1.0"),
        ({0: [("F", 0), ("B", 0), ("B", 0)]}, "gpu0 does B0.0 more than once"),
        ({0: [("F", 0, 1), ("B", 0, 1)]}, "this one has the stages 1"),
        ({0: [("X", 0)]}, "is not a cell"),
        ({0: [("F", 0, 0), ("B", 0, 0)], 1: [("F", 1, 0)]}, "stage 0 is on gpu1 gpu0"),
    ],
)
def test_a_table_that_cannot_be_done_says_why(table, sentence):
    with pytest.raises(ScheduleError, match=sentence):
        pipeline(table)


@pytest.mark.parametrize("stages, micro", [(0, 1), (1, 0), (2.0, 1), (True, 1)])
def test_counts_are_whole_numbers_from_1(stages, micro):
    with pytest.raises(ScheduleError, match="write a whole number, 1 or more"):
        one_f_one_b(stages, micro)


def test_micro_batches_that_cannot_be_grouped_are_refused():
    with pytest.raises(ScheduleError, match="9 micro-batches on 4 devices cannot be interleaved"):
        interleaved(4, 9, 2)


def test_merge_says_who_waits_for_a_collective():
    values = {"g": Value(8, PAIR), "h": Value(8, PAIR)}
    made = {node: [Task(node, "B", "0", None, (), (("g", node), ("h", node)))] for node in PAIR}
    g, h = Collective(ring(PAIR), "g"), Collective(ring(PAIR), "h")
    with pytest.raises(ScheduleError, match="gpu0 waits with gpu0,gpu1 ∑g for gpu1, whose next act is a different one"):
        merge({"gpu0": [*made["gpu0"], g, h], "gpu1": [*made["gpu1"], h, g]}, values)


def test_each_refusal_exists_in_three_languages():
    sentences = set()
    for language in ("en", "vi", "zh"):
        speak(language)
        with pytest.raises(ScheduleError) as error:
            pipeline({0: [("F", 0), ("B", 0)], 1: [("B", 0), ("F", 0)]})
        sentences.add(str(error.value))
    assert len(sentences) == 3


# ---------------------------------------------------------------- cut inside and between operators


def test_a_tensor_parallel_mlp_needs_one_sum_forward_and_one_backward():
    schedule = tensor_mlp(["a", "b", "c"], rows=2, width=4, hidden=9)
    assert [act.value for act in schedule.acts if isinstance(act, Collective)] == ["y", "dx"]
    without = [act for act in schedule.acts if not isinstance(act, Collective) or act.value != "dx"]
    with pytest.raises(ScheduleError, match="at the end dx on a lacks b c"):
        Schedule(schedule.nodes, schedule.values, without, schedule.holds, schedule.wants)
    with pytest.raises(ScheduleError, match="8 units cannot be cut into 3 equal parts"):
        tensor_mlp(["a", "b", "c"], hidden=8)


def test_operators_fit_where_they_are_cut():
    memory = dict.fromkeys(PAIR, 10 * GB)
    placed = place({"op1": 16 * GB, "op2": GB}, {"op1": PAIR, "op2": "gpu1"}, memory)
    assert placed.peak == {"gpu0": 8 * GB, "gpu1": 9 * GB}
    between = place({"op1": 10 * GB, "op2": 10 * GB}, {"op1": "gpu0", "op2": "gpu1"}, memory)
    assert between.peak == {"gpu0": 10 * GB, "gpu1": 10 * GB}
    with pytest.raises(ScheduleError, match="op1 does not fit on gpu0: it would need 16000000000 bytes"):
        place({"op1": 16 * GB}, {"op1": "gpu0"}, memory)
    with pytest.raises(
        ScheduleError, match=r"act 7 \(gpu0 Bop1\): with g:op1:gpu0, gpu0 needs 10750000000 bytes but has 10000000000"
    ):
        place({"op1": 20 * GB}, {"op1": PAIR}, memory, data=GB // 2)
    with pytest.raises(ScheduleError, match="operator op2 has no device"):
        place({"op1": 1, "op2": 1}, {"op1": "gpu0"}, memory)


def test_replicas_add_up_the_gradients_of_the_same_operator():
    four = ["gpu1", "gpu2", "gpu3", "gpu4"]
    schedule = hybrid({"op1": 4, "op2": 4}, four)
    sums = [act for act in schedule.acts if isinstance(act, Collective)]
    assert [(act.plan.nodes, act.value) for act in sums] == [(("gpu1", "gpu3"), "g:op1"), (("gpu2", "gpu4"), "g:op2")]
    over_four = [*schedule.acts[:-2], Collective(ring(four), "g:op1")]
    with pytest.raises(ScheduleError, match="g:op1 is not on gpu2"):
        Schedule(four, schedule.values, over_four, schedule.holds, schedule.wants)
    with pytest.raises(ScheduleError, match="at the end g:op2 on gpu2 lacks 1"):
        Schedule(four, schedule.values, schedule.acts[:-1], schedule.holds, schedule.wants)
    with pytest.raises(ScheduleError, match="3 devices cannot be dealt to replicas of 2 operators"):
        hybrid({"op1": 4, "op2": 4}, four[:3])


# ---------------------------------------------------------------- tables of other programs

IMPOSSIBLE = """
        Rank 0       Rank 1
Step 0: 0F0          1F1
Step 1: 0F1          1B0
Step 2: 0B0          1F0
Step 3: 0B1          1B1
Step 4: 0REDUCE_GRAD 1REDUCE_GRAD
"""


def test_a_table_of_torch_is_read_or_refused_with_the_reason():
    with pytest.raises(ScheduleError, match="gpu1 waits with B1.0 for s1.0"):
        pipeline(from_torch(IMPOSSIBLE))
    with pytest.raises(ScheduleError, match="is not a task such as 0F3"):
        from_torch(IMPOSSIBLE.replace("1F1", "1X1"))
    with pytest.raises(ScheduleError, match="not a table of steps and ranks"):
        from_torch("nothing")


def test_torchs_own_pictures():
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    from torch.distributed.pipelining.schedules import _format_pipeline_order

    def printed(name, micro, *more):
        rows = get_schedule_ops(name, 4, micro, *more)
        return from_torch(_format_pipeline_order(dict(enumerate(rows))))

    assert pipeline(printed("GPipe", 8)) == pipeline(gpipe(4, 8))
    assert pipeline(printed("Interleaved1F1B", 8, 2)).peak == pipeline(interleaved(4, 8, 2)).peak
    for name in ("InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble", "DualPipeV"):
        pipeline(printed(name, 8, 2))
    with pytest.raises(ScheduleError, match="gpu3 does B3.0 without F3.0, the forward pass"):
        pipeline(printed("1F1B", 4))


def test_a_csv_of_torchtitan_is_read_and_its_slots_are_checked():
    table = "0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
    assert from_csv(table) == {
        0: [("F", 0, 0), ("F", 1, 0), ("B", 0, 0), ("B", 1, 0)],
        1: [("F", 0, 1), ("B", 0, 1), ("F", 1, 1), ("B", 1, 1)],
    }
    with pytest.raises(ScheduleError, match="slot 4: B0.1 cannot begin, because B1.1 is done in slot 4"):
        from_csv(table, timed=True)
    assert len(pipeline(from_csv(table)).slots()) == 6  # and not 5


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_printed_table_is_aligned_in_every_language_alone_and_together(language, monkeypatch):
    """In a notebook that is executed for all readers, the word in the corner has three lengths."""
    schedule = pipeline(gpipe(2, 2))
    speak(language)
    alone = str(schedule)
    monkeypatch.setattr(spoken, "_all", True)
    assert unmarked(str(schedule), language) == alone
    head, first, second = alone.splitlines()
    wide = language == "zh"  # two letters of two columns
    assert head.index("0") + 2 * wide == first.index("F0") and head.index("1") + 2 * wide == second.index("F0")


def test_a_printed_pipeline_is_narrower_than_the_output_of_a_cell():
    """JupyterLab has room for 107 letters at 1280 px, and breaks longer lines in the middle of a word."""
    tables = {"1F1B": one_f_one_b(4, 8), "ZB-H1": zero_bubble(4, 8), "interleaved": interleaved(2, 4, 2)}
    for name, table in tables.items():
        schedule = pipeline(table)
        lines = str(schedule).splitlines()
        assert max(map(len, lines)) <= 107, name
        cells = [line.split()[1:] for line in lines[1:]]
        tasks = [[task for task in schedule.tasks if task.node == node] for node in schedule.nodes]
        several = name == "interleaved"
        assert cells == [
            [f"{t.name}{t.of}.{t.batch}" if several else f"{t.name}{t.batch}" for t in row] for row in tasks
        ]
