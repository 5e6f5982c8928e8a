"""Two levels: the bytes that cross a network card, their cost, and refused arguments."""

from fractions import Fraction

import pytest

from d2lps import PlanError, aggregate_at, check, cost, hierarchical, machines, ring, run, sharded

torch = pytest.importorskip("torch")


def inside(hosts, gpus, own=False):
    """Leader → devices: the CPU, or (``own``) GPU 0."""
    found = {}
    for i in range(hosts):
        devices = [f"host{i}/gpu{j}" for j in range(gpus)]
        found[devices[0] if own else f"host{i}/cpu"] = devices
    return found


@pytest.mark.parametrize("hosts, gpus", [(1, 1), (2, 1), (2, 3), (3, 2), (5, 4)])
@pytest.mark.parametrize("own", [False, True])
def test_every_device_has_the_sum_of_all(hosts, gpus, own):
    groups = inside(hosts, gpus, own)
    leaders = list(groups)
    for across in (ring(leaders), sharded(leaders, ["server0"]), aggregate_at(leaders, leaders[0])):
        plan = hierarchical(groups, across)
        check(plan)
        assert len(plan.steps) == len(across.steps) + 2 * (gpus > 1 or not own)
        devices = [device for some in groups.values() for device in some]
        assert {node for node, *_ in plan.holds} == {node for node, *_ in plan.wants} == set(devices)
        tensors = {node: torch.zeros(7) for node in plan.nodes}
        tensors |= {device: torch.full((7,), 2.0**i) for i, device in enumerate(devices)}
        run(plan, tensors)
        assert all(torch.all(tensors[device] == 2.0 ** len(devices) - 1) for device in devices)


@pytest.mark.parametrize("hosts, gpus", [(2, 1), (3, 2), (4, 8)])
def test_a_card_carries_what_crosses_machines_once(hosts, gpus):
    groups, nbytes = inside(hosts, gpus), 10**9
    network = machines(hosts, gpus, nic="10 Gbit/s", inside="16 GB/s")
    across = ring(list(groups))
    trace = cost.shared(hierarchical(groups, across), network, nbytes)
    # gpus·S into the leader and out again, and between them the ring over the cards
    within = 2 * gpus * Fraction(nbytes, 16 * 10**9)
    between = 2 * Fraction(hosts - 1, hosts) * Fraction(nbytes * 8, 10**10)
    assert trace.duration == pytest.approx(float(within + between), rel=1e-12)
    flat = cost.shared(sharded([device for some in groups.values() for device in some]), network, nbytes)
    card = sum(event.nbytes for event in flat.events if event.src.startswith("host0") != event.dst.startswith("host0"))
    assert card == pytest.approx(
        4 * nbytes * gpus * (hosts - 1) / hosts
    )  # in and out, for each phase: gpus times as much


def test_an_update_in_the_middle_reaches_all():
    groups = inside(2, 2)
    plan = hierarchical(groups, sharded(list(groups), ["server0"], update=("sgd", {"lr": 0.1})))
    assert {state for *_, state in plan.wants} == {"updated"}


def test_what_does_not_go_together_is_refused():
    groups = inside(2, 2)
    leaders = list(groups)
    for bad, sentence in [
        (lambda: hierarchical(groups, "ring"), "hierarchical needs a plan"),
        (lambda: hierarchical(leaders, ring(leaders)), "map each machine's leader"),
        (lambda: hierarchical({}, ring(leaders)), "map each machine's leader"),
        (lambda: hierarchical(groups, ring([*leaders, "host2/cpu"])), "host2/cpu .*leads no machine"),
        (lambda: hierarchical(groups, ring(leaders[:1])), "host1/cpu is a leader"),
        (lambda: hierarchical(groups | {"x": ["host0/gpu0"]}, ring([*leaders, "x"])), "host0/gpu0 is named twice"),
        (lambda: hierarchical(groups, sharded(leaders, ["host0/gpu1"])), "host0/gpu1 .*leads no machine"),
    ]:
        with pytest.raises(PlanError, match=sentence):
            bad()
