"""ZeRO as schedules: bytes, memory and time against closed forms, and what the check finds in wrong ones."""

from fractions import Fraction

import pytest

from d2lps import all_gather, cost, nvswitch, ring
from d2lps.schedule import Collective, Schedule, ScheduleError, Task, fully_sharded, zero

LAYERS = [60, 120, 60, 180]
PSI = 4 * sum(LAYERS)


def gpus(count):
    return [f"gpu{i}" for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("micro", [1, 2, 3])
def test_every_device_sends_the_bytes_of_the_formula(count, micro):
    last, m = 4 * LAYERS[-1], micro
    sent = {
        (0, False, True): 2 * PSI,
        (1, False, True): 2 * PSI,
        (2, False, True): (m + 1) * PSI,
        (2, True, True): 2 * PSI,
        (3, False, True): m * (3 * PSI - last),
        (3, False, False): 3 * m * PSI,
        (3, True, True): (2 * m + 1) * PSI - m * last,
        (3, True, False): (2 * m + 1) * PSI,
    }
    for (stage, wait, keep), nbytes in sent.items():
        trace = cost.shared(zero(gpus(count), LAYERS, stage, micro, wait, keep))
        for node in gpus(count):
            assert trace.bytes_sent(node) == nbytes * Fraction(count - 1, count)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_memory(count):
    first = 4 * LAYERS[0]
    assert {*zero(gpus(count), LAYERS, 0).peak.values()} == {4 * PSI}  # w, g and twice as much s
    assert {*zero(gpus(count), LAYERS, 1).peak.values()} == {2 * PSI + 2 * PSI // count}
    above = [4 * sum(LAYERS[k:]) // count + 4 * LAYERS[k] for k in range(len(LAYERS))]  # parts, and one layer whole
    assert above[0] == PSI // count + first
    assert {*zero(gpus(count), LAYERS, 2).peak.values()} == {PSI + 2 * PSI // count + max(above)}
    assert zero(gpus(1), LAYERS, 3).peak == {"gpu0": 4 * PSI}
    for node, peak in fully_sharded(gpus(count), LAYERS).peak.items():
        assert node in gpus(count) and 3 * PSI // count < peak <= 4 * PSI // count + 2 * 4 * max(LAYERS)


def test_activations_of_one_micro_batch_at_a_time():
    layers, data = [0] * 4, [100, 20, 30, 40]
    for micro in (1, 3):
        peak = zero(gpus(2), layers, 3, micro, data=data).peak["gpu0"]
        # The inputs of all micro-batches are there from the beginning; the gradient comes when all layers have theirs.
        assert peak == micro * 100 + 20 + 30 + 40 + 40
    assert fully_sharded(gpus(2), layers, data=7).peak == fully_sharded(gpus(2), layers, data=[7] * 4).peak


def test_parts_of_layers_that_do_not_divide():
    schedule = zero(gpus(3), [7, 1, 0], 3)
    assert [sum(schedule.size(f"w{k}/g{j}") for j in (1, 2, 3)) for k in range(3)] == [28, 4, 0]
    assert sum(schedule.size(f"s{k}/g{j}") for k in range(3) for j in (1, 2, 3)) == 64


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("bandwidth", [1, 100, 10**6])
def test_two_layers_at_a_time_however_fast_the_network(count, bandwidth):
    layers = [64] * 6
    trace = cost.shared(
        fully_sharded(gpus(count), layers, rows=1), nvswitch(gpus=count, bandwidth=f"{bandwidth} B/s", links=1)
    )
    room = 4 * 4 * 64 * 6 // count + 2 * (4 * 64 + 4 * 64)  # the parts; weights and gradients of two layers
    assert all(trace.peak_memory(node) <= room for node in gpus(count))


def test_the_next_layer_is_gathered_while_this_one_computes():
    layers, rows = [60] * 5, 1
    gather = Fraction(2, 3) * 240 / 10  # seconds at 10 B/s; forward takes 120
    trace = cost.shared(fully_sharded(gpus(3), layers, rows=rows), nvswitch(gpus=3, bandwidth="10 B/s", links=1))
    assert trace.duration == pytest.approx(float(gather + 5 * 120 + 5 * 240 + gather), rel=1e-6)
    computing = sum(event.end - event.start for event in trace.events if event.kind == "task")
    assert computing == 3 * 5 * 360 and trace.bubble() < 0.02


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_schedule_survives_json(count):
    schedule = zero(gpus(count), LAYERS, 3, micro=2)
    assert Schedule.from_json(schedule.to_json()) == schedule


# ---------------------------------------------------------------- wrong schedules


def changed(schedule, acts, limit=None):
    limits = dict.fromkeys(schedule.nodes, limit) if limit else None
    return Schedule(schedule.nodes, schedule.values, acts, schedule.holds, schedule.wants, limits)


def right():
    return fully_sharded(gpus(2), [60] * 12)


ROOM = 4 * 4 * 720 // 2 + 4 * 240


def test_the_room_suffices():
    schedule = right()
    changed(schedule, schedule.acts, ROOM)


def without_gathers(acts):
    return [act for act in acts if not (isinstance(act, Collective) and act.value[0] == "w")]


def test_gathering_all_layers_first_does_not_fit():
    gathers = [Collective(all_gather(gpus(2)), f"w{k}") for k in range(12)]
    acts = [act._replace(frees=()) if isinstance(act, Task) and act.name == "F" else act for act in right().acts]
    with pytest.raises(ScheduleError, match=r"with w\d+, gpu\d needs \d+ bytes but has"):
        changed(right(), [*gathers, *without_gathers(acts)], ROOM)


def test_never_freeing_does_not_fit():
    gathers = {f"F{k}.0": Collective(all_gather(gpus(2)), f"w{k}") for k in range(12)}
    acts = []
    for act in without_gathers(right().acts):
        if isinstance(act, Task) and act.node == "gpu0" and act.name == "F":
            acts.append(gathers[act.label])
        acts.append(act._replace(frees=()) if isinstance(act, Task) and act.name == "F" else act)
    changed(right(), acts)  # right, but for the memory
    with pytest.raises(ScheduleError, match="bytes but has"):
        changed(right(), acts, ROOM)


def test_no_second_gather():
    acts = right().acts
    second = max(i for i, act in enumerate(acts) if isinstance(act, Collective) and act.value == "w3")
    with pytest.raises(ScheduleError, match=r"B3.0\): w3 is not on gpu0"):
        changed(right(), acts[:second] + acts[second + 1 :])


def test_gathering_the_last_layer_twice():
    acts = [*right().acts]
    last = max(i for i, act in enumerate(acts) if isinstance(act, Task) and act.name == "F")
    with pytest.raises(ScheduleError, match="counts .* twice"):
        changed(right(), [*acts[: last + 1], Collective(all_gather(gpus(2)), "w11"), *acts[last + 1 :]])


def test_an_all_reduce_leaves_no_part_to_update():
    acts = [
        act._replace(plan=ring(gpus(2))) if isinstance(act, Collective) and act.value[0] == "g" else act
        for act in right().acts
    ]
    with pytest.raises(ScheduleError, match=r"g0/g\d is not on gpu0"):
        changed(right(), acts)


def test_an_update_before_all_gradients_are_added_up():
    acts = zero(gpus(2), [60], 2, micro=2).acts
    scatters = [i for i, act in enumerate(acts) if isinstance(act, Collective) and act.value == "g0"]
    with pytest.raises(ScheduleError, match=r"U0\): g0/g2 on gpu0 lacks gpu0.1 gpu1.1"):
        changed(zero(gpus(2), [60], 2, micro=2), acts[: scatters[1]] + acts[scatters[1] + 1 :])


@pytest.mark.parametrize(
    "layers, options, sentence",
    [
        ([], {}, "a model of layers"),
        ([3, -1], {}, "a model of layers"),
        ([3, "4"], {}, "a model of layers"),
        ([3], {"stage": "3"}, "the stage must be 0, 1, 2 or 3"),
        ([3], {"micro": 0}, "1 micro-batch or more"),
        ([3, 4], {"data": [1, 2, 3]}, "data lists 3 sizes for 2 layers"),
        ([3], {"memory": {"gpu0": 10}}, "gpu0 needs"),
    ],
)
def test_bad_input(layers, options, sentence):
    with pytest.raises(ScheduleError, match=sentence):
        zero(gpus(2), layers, **options)
