"""Options of a distributed store are looked at before anything is started, with every way to make one."""

from fractions import Fraction

import numpy as np
import pytest
from helpers.scripts import forked

from d2lps import kvstore
from d2lps.algorithms.placement import Placement
from d2lps.kvstore import Refused

MAKE = {
    "create": lambda servers=2, **options: kvstore.create("dist_sync", servers=servers, **options),
    "cluster": lambda servers=2, **options: kvstore.cluster(servers=servers, **options),
}


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("deadline", [0, -1.0, float("nan"), float("inf"), 1e18, "30", True, None, 1j])
def test_a_deadline_is_a_number_of_seconds(make, deadline):
    with pytest.raises(Refused, match="deadline = .*: give a number of seconds, more than 0"):
        MAKE[make](deadline=deadline)


@pytest.mark.parametrize("deadline", [np.float32(2.5), np.float64(2.5), np.int64(2), Fraction(5, 2), 2])
def test_a_number_of_seconds_may_be_of_any_type(deadline):
    with kvstore.cluster(workers=1, deadline=deadline) as stores:
        assert type(stores[0].deadline) is float and stores[0].deadline == float(deadline)


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("servers", [0, -1, True, "2", 1.0])
def test_servers_are_counted(make, servers):
    with pytest.raises(Refused, match="servers = .*: it must be a whole number, 1 or more"):
        MAKE[make](servers=servers)


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("wrong", [{"lost": "wait"}])
def test_workers_refuse_at_once_what_servers_would_refuse(make, wrong):
    with pytest.raises(Refused, match="lost = 'wait': it is one of"):
        MAKE[make](**wrong)


@pytest.mark.parametrize("placement", [{"large": 10, "virtual": 8}, Placement(2, large=10, virtual=8)])
def test_a_placement_is_given_as_it_is_or_by_its_numbers(placement):
    with kvstore.cluster(servers=2, placement=placement) as stores:
        assert (stores.placement.servers, stores.placement.large, stores.placement.virtual) == ((0, 1), 10, 8)


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(
    "placement, sentence",
    [
        (Placement(3), r"placement uses servers \(0, 1, 2\), but the servers are 0 to 1"),
        ({"larger": 10}, "a Placement, or its numbers"),
        (["large"], "a Placement, or its numbers"),
        ({"large": 0}, "large = 0: it must be a whole number, 1 or more"),
    ],
)
def test_another_placement_is_refused(make, placement, sentence):
    with pytest.raises(Refused, match=sentence):
        MAKE[make](placement=placement)


TRANSPORT = """
import os, torch
from d2lps import kvstore

with kvstore.create("dist_sync", servers=2, joining=60.0, transport='tcp') as store:
    store.init("w", torch.zeros(400_000))
    store.pushpull("w", torch.full((400_000,), 4.0**store.rank), out=(out := torch.empty(400_000)))
    store.barrier()
    print(out.unique().tolist(), {type(client.address).__name__ for client in store.clients})
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport, where", [("tcp", "tuple"), (None, "str")])
def test_a_store_of_one_host_may_go_over_tcp(tmp_path, transport, where):
    script = tmp_path / "work.py"
    script.write_text(TRANSPORT.replace("'tcp'", repr(transport)))
    assert forked(script, 2, D2LPS_SECRET="of this test alone") == [[f"[5.0] {{'{where}'}}"]] * 2


@pytest.mark.slow
def test_over_tcp_a_secret_is_wanted(tmp_path):
    script = tmp_path / "work.py"
    lines = TRANSPORT.replace("\n", "\n    ")
    script.write_text(
        f"try:{lines}\nexcept Exception as error:\n    print(type(error).__name__, 'secret' in str(error))"
    )
    assert forked(script, 2, without=("D2LPS_SECRET",)) == [["Refused True"]] * 2


@pytest.mark.parametrize("transport", ["udp", "unix", 4])
def test_another_transport_is_refused(transport):
    with pytest.raises(Refused, match="transport = .*: write 'tcp', or leave it out"):
        kvstore.create("dist_sync", transport=transport)
