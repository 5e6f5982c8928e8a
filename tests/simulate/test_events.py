"""Virtual time: a seed alone decides the order of events."""

import pytest

from d2lps.simulate import Events, Faults, Network


def test_what_is_to_happen_at_one_time_keeps_the_order_of_its_calls():
    world, seen = Events(), []
    for name, seconds in [("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.0)]:
        world.after(seconds, seen.append, name)
    world.after(1.0, lambda: world.after(0.0, seen.append, "now"))
    world.run()
    assert seen == ["a", "b", "now", "c", "d"] and world.now == 2.0 and world.count == 6


def test_a_run_stops_at_its_limit_and_continues_from_there():
    world, seen = Events(), []
    for seconds in (1.0, 3.0):
        world.after(seconds, seen.append, seconds)
    world.run(until=2.0)
    assert (seen, world.now) == ([1.0], 2.0)
    world.after(0.5, seen.append, 2.5)
    world.run()
    assert (seen, world.now) == ([1.0, 2.5, 3.0], 3.0)


@pytest.mark.parametrize("seconds", [-1, float("nan"), -1e-9])
def test_nothing_happens_in_the_past(seconds):
    with pytest.raises(ValueError, match="nothing happens in the past"):
        Events().after(seconds, print)


class Kept:
    def __init__(self):
        self.came = []

    def receive(self, src, message, now):
        self.came.append((src, message, now))


def played(seed: int, **faults) -> tuple[Kept, Network]:
    net, node = Network(seed, Faults(**faults)), Kept()
    net.nodes["b"] = node
    net.record()
    for number in range(400):
        net.after(number * 0.01, net.send, "a", "b", number)
    net.run()
    return node, net


def test_the_same_seed_is_the_same_run():
    chances = dict(lost=0.2, doubled=0.2, slow=0.1)
    assert played(5, **chances)[0].came == played(5, **chances)[0].came != played(6, **chances)[0].came


def test_messages_are_lost_doubled_and_late_as_often_as_asked():
    node, net = played(1, lost=0.25, doubled=0.25, slow=0.25)
    ends = [each.end for each in net.deliveries]
    times = [number for _, number, _ in node.came]
    assert 70 < ends.count(None) < 130 and len(times) == len(ends) - ends.count(None)
    assert 50 < len(times) - len({*times}) < 100
    assert 50 < sum(each.end is not None and each.end - each.start > 5e-3 for each in net.deliveries) < 130
    assert times != sorted(times), "late ones were overtaken"


def test_after_the_end_of_all_faults_everything_arrives_once_and_soon():
    node, net = played(2, lost=1.0, until=2.0)
    assert [number for _, number, _ in node.came] == list(range(200, 400))
    assert all(0.5e-3 <= each.end - each.start <= 5e-3 for each in net.deliveries if each.end)


def test_a_node_is_cut_off_one_way_paused_and_crashes():
    net, a, b = Network(seed=0), Kept(), Kept()
    net.nodes |= {"a": a, "b": b}
    net.cut("a", "b", 1.0)
    net.send("a", "b", "lost")
    net.send("b", "a", "heard")
    net.pause("a", 2.0)
    net.run()
    assert b.came == [] and [each[:2] for each in a.came] == [("b", "heard")] and a.came[0][2] == 2.0
    net.after(1.0, net.send, "a", "b", "late")
    net.run(until=3.0)
    assert net.crash("b") is b
    net.run()
    assert b.came == [] and net.paused("a") == 0.0


def test_it_is_known_who_died_when():
    net = Network(1)
    net.nodes |= {"a": Kept(), "b": Kept()}
    net.after(0.5, net.crash, "b")
    net.run()
    assert net.deaths == [(0.5, "b")] and [*net.nodes] == ["a"]


def test_a_record_has_every_change_of_a_state_and_every_trouble():
    net, node = Network(seed=1), Kept()
    net.nodes["b"] = node
    net.cut("a", "b", 0.5)
    net.record(lambda name, node, now: f"{name} {len(node.came)}")
    for at in (0.1, 1.0, 2.0):
        net.after(at, net.send, "a", "b", at)
    net.after(3.0, net.pause, "b", 1.0)
    net.after(5.0, net.crash, "b")
    net.after(6.0, net.nodes.update, {"b": node})
    net.run()
    assert [(state.node, state.state) for state in net.states] == [("b", f"b {count}") for count in (0, 1, 2, 2)]
    arrived = [each.end for each in net.deliveries if each.end is not None]
    assert [state.start for state in net.states] == [0.0, *arrived, 6.0]
    assert net.troubles == [(0.0, 0.5, "a", "b"), (3.0, 4.0, "b", None)]


def test_what_is_not_recorded_is_not_asked_for():
    net = Network()
    net.nodes["b"] = Kept()
    net.send("a", "b", 1)
    net.run()
    assert (net.states, net.deliveries) == ([], None)
