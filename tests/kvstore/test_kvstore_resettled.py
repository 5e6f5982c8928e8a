"""A save just after a server was lost: the open round begins anew, and that is no round in its midst."""

import time
from contextlib import ExitStack

import pytest
import torch
from helpers.stores import each, until_whole

from d2lps.kvstore import Refused, cluster

SIZE = 4000
pytestmark = pytest.mark.fault("F2", "server killed between a push and a save")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["save", "load"])
def test_a_worker_that_comes_late_to_the_new_primary_is_waited_for(what, monkeypatch, tmp_path):
    with cluster("dist_sync", 2, 2, replicas=1, deadline=10.0, placement={"large": 1000}) as servers:
        each(servers, lambda store: store.init("w", torch.zeros(SIZE)))
        each(servers, lambda store: store.save(tmp_path / "file"))
        until_whole(servers)
        late, connect = servers[1].clients[1], servers[1].clients[1]._connect

        def slowly(until):
            time.sleep(1.0)
            return connect(until)

        monkeypatch.setattr(late, "_connect", slowly)
        with ExitStack() as held:
            for line in servers.servers[1].replicas[1].store.slot._lines.values():
                held.enter_context(line._sending)  # its backup does not hear of the round
            each(servers, lambda store: store.push("w", torch.ones(SIZE)))
            servers.kill(1)
        assert each(servers, lambda store: getattr(store, what)(tmp_path / "file")) == [None, None]
        monkeypatch.undo()
        servers[0].pull("w", out=(out := torch.empty(SIZE)))
        assert out.unique().tolist() == [2.0 if what == "save" else 0.0]


@pytest.mark.slow
def test_a_round_in_its_midst_is_refused_still(tmp_path):
    with cluster("dist_sync", 2, 2, replicas=1, deadline=2.0) as servers:
        each(servers, lambda store: store.init("w", torch.zeros(3)))
        until_whole(servers)
        servers.kill(0)
        servers[0].push("w", torch.ones(3))
        found = each(servers, lambda store: store.save(tmp_path / "file"))
        assert all(isinstance(error, Refused) and "in the midst of a round" in str(error) for error in found)
