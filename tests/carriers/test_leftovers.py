"""Files of a killed process are removed by the next one; files in use stay."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest
import torch

from d2lps import kvstore
from d2lps.carriers import leftovers
from d2lps.carriers.segments import Segment, location_of
from d2lps.kvstore import Refused, launch
from d2lps.kvstore.server.process import ServerProcess

HOLDS = """
import sys, tempfile
from d2lps.carriers.leftovers import held
path, _ = held(tempfile.mkdtemp, sys.argv[1])
open(path + "/0", "w").close()
print(path, held(tempfile.mkstemp, sys.argv[1])[0], flush=True)
sys.stdin.read()
"""


def test_leftovers_are_removed_only_after_their_process_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        paths = holder.stdout.readline().split()
        leftovers.sweep(str(tmp_path))
        assert all(map(os.path.exists, paths)), "its holder lives"
        holder.send_signal(signal.SIGKILL)
    assert all(map(os.path.exists, paths))
    path, descriptor = leftovers.held(tempfile.mkdtemp, str(tmp_path))
    assert os.listdir(tmp_path) == [os.path.basename(path)]
    os.close(descriptor)


def test_a_file_swept_before_it_is_locked_is_made_again(tmp_path):
    paths = []

    def swept_once(**where):
        paths.append(tempfile.mkdtemp(**where))
        if len(paths) == 1:
            leftovers.sweep(str(tmp_path))
        return paths[-1]

    path, descriptor = leftovers.held(swept_once, str(tmp_path))
    os.close(descriptor)
    assert (os.listdir(tmp_path), len(paths)) == ([os.path.basename(path)], 2)


def test_only_leftovers_are_removed(tmp_path):
    other, link = tmp_path / "d2lps-ranks-1", tmp_path / f"{leftovers.PREFIX}link"
    full = tmp_path / f"{leftovers.PREFIX}full"
    (full / "folder").mkdir(parents=True)
    other.mkdir()
    (other / "kept").touch()
    link.symlink_to(other)
    leftovers.sweep(str(tmp_path))
    assert (other / "kept").exists() and link.is_symlink() and (full / "folder").exists()


def test_a_server_holds_the_folder_of_its_socket(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, descriptor = launch.socket_folder()
    spec = {"store": {"kind": "dist_sync", "workers": 1}, "folder": folder, "number": 0}
    started = ServerProcess(spec, 60.0, (descriptor,))
    os.close(descriptor)
    address = started.names()[0][2]
    leftovers.sweep(str(tmp_path))
    assert os.listdir(folder) == [os.path.basename(address)], "the server listens there"
    started.process.kill()
    started.process.wait(10)
    leftovers.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="it is so without being asked for")
def test_memory_in_a_file_stays_while_a_process_has_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create")
    tensor = Segment(4096).tensor(1000, torch.float32)
    leftovers.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == [os.path.basename(location_of(tensor).path)]
    del tensor
    assert os.listdir(tmp_path) == []


def test_sockets_lie_where_their_paths_are_short_enough(monkeypatch, tmp_path):
    long, short = tmp_path / ("long" * 25), tempfile.mkdtemp(prefix="d2-")
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", short)
    with kvstore.cluster(workers=1) as stores:
        assert os.path.dirname(stores.servers[0].address).startswith(short)
    assert os.listdir(short) == [] == os.listdir(long)
    os.rmdir(short)
    monkeypatch.setattr(launch, "MOST_OF_A_PATH", 1)
    with pytest.raises(Refused, match="paths of 1 bytes or more.*: let TMPDIR name a folder"):
        kvstore.cluster(workers=1)
