"""Carriers refuse bad input at once, on every rank, in one sentence that names the thing."""

import re
import socket
import threading
from itertools import chain, cycle

import pytest
import torch
from helpers.ranks import DEADLINE, outcome, ranks
from helpers.waits import LIVE

from d2lps import (
    Processes,
    RankLost,
    Reduction,
    SharedMemory,
    aggregate_at,
    calibrate,
    kvstore,
    reduce_scatter,
    ring,
    run,
    tree,
)
from d2lps.carriers.execute import compile
from d2lps.carriers.ranks import LAUNCHERS, from_environment
from d2lps.carriers.rendezvous import NoRanks, ProcessesError
from d2lps.carriers.tensors import TensorError
from d2lps.kvstore import KVError

CARRIERS = [Processes, SharedMemory]
each_carrier = pytest.mark.parametrize("kind", CARRIERS, ids=lambda kind: kind.__name__)
ONES = torch.ones


def at_1(rank, this, other):
    """``this`` on rank 1, ``other`` elsewhere."""
    return this if rank.number == 1 else other


def runs(plan=lambda rank: ring(["a", "b", "c"]), tensor=lambda rank: ONES(6), playing=lambda rank: None, **more):
    """The function of a rank: make a carrier, run a plan; every argument may depend on the rank."""
    return plan, tensor, playing, more


def served(*playing):
    """The same for two workers and a server, played like this."""
    return runs(plan=lambda rank: aggregate_at(["gpu0", "gpu1"], "cpu"), playing=lambda rank: playing[rank.number])


# name → what the ranks do, what all say, or what rank 1 says and what the others do
REFUSED = {
    "a plan for more processes": (
        runs(plan=lambda rank: ring([*"abcd"])),
        r"the plan has 4 nodes, but there are 3 processes, each of which plays one: start 4 \(torchrun .*\w+\(\[…\]\)$",
    ),
    "a plan for fewer": (runs(plan=lambda rank: ring([*"ab"])), "the plan has 2 nodes, but there are 3 processes"),
    "more names than processes": (runs(plan=lambda rank: ring([f"rank{i}" for i in range(4)])), "the plan has 4 nodes"),
    "fewer names": (runs(plan=lambda rank: ring(["rank0", "rank2"])), "the plan has 2 nodes, but there are 3"),
    "some names of processes and some others": (
        runs(plan=lambda rank: ring(["gpu2", "rank1", "rank0"])),
        r"rank1 is the name of a process, but gpu2 is not: make the plan for carrier.names, or say who plays what with",
    ),
    "a node that two play": (served(["gpu0"], ["gpu1", "cpu"], ["cpu"]), "cpu is played by rank 1 and by rank 2"),
    "a node that nobody plays": (served(["gpu0"], ["gpu1"], ["other"]), r"no process plays cpu: .* \w+\(\['cpu'\]\)"),
    "a rank that plays nothing": (served(["gpu0", "cpu"], ["gpu1"], []), r"rank 2 plays no .* \(gpu0 gpu1 cpu\)"),
    "another size": (
        runs(tensor=lambda rank: ONES(at_1(rank, 7, 6))),
        "elements of rank 1's tensors: 7, of rank 0's: 6; they must be the same on all ranks",
    ),
    "another dtype": (
        runs(tensor=lambda rank: ONES(6, dtype=at_1(rank, torch.float64, torch.float32))),
        "dtype of rank 1's tensors: torch.float64, of rank 0's: torch.float32",
    ),
    "another plan": (
        runs(plan=lambda rank: at_1(rank, tree, ring)(["a", "b", "c"])),
        "rank 1 has a different plan from rank 0: make the plan in the same way on all ranks",
    ),
    "no plan on one rank": (
        runs(plan=lambda rank: at_1(rank, None, ring(["a", "b", "c"]))),
        r"run needs a Plan, such as d2lps.ring\(\[…\]\), not a NoneType",
        "rank 1 ended the run",
    ),
    "another reduction": (
        runs(reduce=lambda rank: at_1(rank, "max", "sum")),
        "reduction of rank 1's tensors: max, of rank 0's: sum",
    ),
    "another shape on one rank": (
        runs(tensor=lambda rank: ONES(at_1(rank, (2, 3), 6))),
        r"b's tensor has shape \(2, 3\), but a buffer must be flat: use .reshape\(-1\)",
        r"rank 1 ended the run \(refused: b's tensor has shape \(2, 3\), but a buffer must be flat: .*\)",
    ),
    "no tensor on one rank": (
        runs(tensor=lambda rank: at_1(rank, {}, ONES(6))),
        "node b has no tensor: give one for each of b",
        r"rank 1 ended the run \(refused: node b has no tensor: give one for each of b\)\.",
    ),
    "someone else's tensor": (
        runs(tensor=lambda rank: at_1(rank, {"a": ONES(6), "b": ONES(6)}, ONES(6))),
        r"a tensor is given for 'a', which is not played by this process \(nodes: b\)",
        "rank 1 ended the run",
    ),
    "a tensor on no device": (
        runs(tensor=lambda rank: ONES(6, device=at_1(rank, "meta", "cpu"))),
        "b's tensor is on the device meta, which holds no values",
        "rank 1 ended the run",
    ),
    "a sparse tensor": (
        runs(tensor=lambda rank: at_1(rank, ONES(6).to_sparse(), ONES(6))),
        r"b's tensor is sparse: make it dense with .to_dense\(\)",
        "rank 1 ended the run",
    ),
    "one element repeated": (
        runs(tensor=lambda rank: at_1(rank, ONES(1).expand(6), ONES(6))),
        "b's tensor repeats one element in memory",
        "rank 1 ended the run",
    ),
    "no weights where they are needed": (
        runs(plan=lambda rank: aggregate_at(["a", "b", "c"], "b", update=("sgd", {"lr": 0.1}))),
        "b updates key g: give its weights",
        "rank 1 ended the run",
    ),
    "a wrong identity on one rank": (
        runs(reduce=lambda rank: Reduction("sum", torch.add, at_1(rank, 1, 0))),
        "sum with its identity 1 changes",
        "rank 1 ended the run",
    ),
    "a reduction that fails on one rank": (
        runs(reduce=lambda rank: at_1(rank, FAILING, FINE)),
        "no more",
        r"rank 1 ended the run in step \d \(refused: no more\)\.",
    ),
    "names that are none": (
        runs(playing=lambda rank: "gpu0"),
        r"playing = 'gpu0': name the nodes that this process plays, such as \['gpu0'\]",
    ),
    "numbers for names": (runs(playing=lambda rank: [rank.number]), r"playing = \[\d\]: name the nodes"),
    "a number for names": (runs(playing=lambda rank: rank.number), r"playing = \d: name the nodes"),
}


def fails_the_second_time(own, arrived):
    fails_the_second_time.calls += 1
    if fails_the_second_time.calls > 1:
        raise RuntimeError("no more")
    return own + arrived


fails_the_second_time.calls = 0
FAILING, FINE = Reduction("sum of mine", fails_the_second_time, 0), Reduction("sum of mine", torch.add, 0)


def refused(rank, kind, case):
    fails_the_second_time.calls = 0
    plan, tensor, playing, more = REFUSED[case][0]

    def tried():
        carrier = rank.carrier(kind, playing(rank))
        return run(plan(rank), tensor(rank), carrier, **{name: value(rank) for name, value in more.items()})

    return outcome(tried)


@pytest.mark.parametrize("case, kind", list(zip(REFUSED, cycle(CARRIERS))))  # the code is the same for both
def test_what_does_not_go_together_is_refused_on_every_rank_at_once(case, kind):
    _, sentence, *others = REFUSED[case]
    results = ranks()(refused, kind, case, n=3)
    for rank, error in enumerate(results):
        pattern = sentence if not others or rank == 1 else others[0]
        assert isinstance(error, RuntimeError | ValueError) and re.match(pattern, str(error)), (rank, repr(error))
        if others and rank != 1:
            assert isinstance(error, RankLost) and error.ranks == (1,)


def again(rank, kind):
    """After a refusal the carrier is over, on all ranks; a new one works."""
    carrier = rank.carrier(kind)
    first = outcome(run, ring(carrier.names), ONES(at_1(rank, (2, 3), 6)), carrier)
    second = outcome(run, ring(carrier.names), ONES(6), carrier)
    carrier.close()
    third = [outcome(run, ring(carrier.names), ONES(shape), carrier) for shape in (6, (2, 3))]
    tensor, carrier = ONES(6), rank.carrier(kind)
    run(ring(carrier.names), tensor, carrier)
    return first, second, third, tensor.tolist()


@each_carrier
def test_a_carrier_that_is_over_says_why_and_what_to_do_and_a_new_one_works(kind):
    results = ranks()(again, kind, n=3)
    for rank, (first, second, third, values) in enumerate(results):
        assert isinstance(first, TensorError if rank == 1 else RankLost)
        assert isinstance(second, RankLost) and second.ranks == (1,)
        assert re.match("rank 1 (ended the run|refused).*To go on, make a new carrier in all processes.", str(second))
        assert str(third[0]) == "this carrier is closed: make a new one, in all processes"
        assert isinstance(third[1], TensorError)  # a local fault is reported here only
        assert values == [3.0] * 6


def one_too_few(rank):
    """Rank 2 does not come, and later all do: who missed one meeting is in time for the next."""
    rank.meet()
    error = None if rank.number == 2 else outcome(lambda: rank.carrier(Processes, deadline=DEADLINE))
    rank.store.set(f"waited/{rank.number}", "")
    rank.store.wait([f"waited/{number}" for number in range(rank.size)])
    tensor, carrier = ONES(6), rank.carrier(Processes)
    run(ring(carrier.names), tensor, carrier)
    return error, tensor.tolist()


def test_rank_that_does_not_come_is_named_and_may_come_to_the_next_meeting():
    results = ranks()(one_too_few, n=3)
    assert [values for _, values in results] == [[3.0] * 6] * 3
    for error, _ in results[:2]:
        assert isinstance(error, RankLost) and (error.ranks, error.step) == ((2,), None)
        assert (
            str(error)
            == f"rank 2 gave no sign of life for {DEADLINE:g} s (dead, stopped or busy) before the first step."
        )


def prepared_again(rank, kind):
    carrier, tensor = rank.carrier(kind), ONES(6)
    program = compile(ring(carrier.names), tensor, carrier)
    program.execute()
    first = outcome(run, ring(carrier.names), ONES(at_1(rank, (2, 3), 6)), carrier)
    return first, outcome(program.execute), outcome(carrier.barrier), tensor.tolist()


@each_carrier
def test_what_was_prepared_on_a_carrier_that_is_over_does_nothing_more(kind):
    for _, going, waiting, values in ranks()(prepared_again, kind, n=3):
        assert isinstance(going, RankLost) and isinstance(waiting, RankLost) and values == [3.0] * 6


def in_two_threads(rank, kind, second):
    """While one thread is in the midst of a run, on every rank, another begins."""
    carrier, outcomes, inside, go_on = rank.carrier(kind), [], threading.Event(), threading.Event()

    def adds(own, arrived):
        if len(own) > 8:  # in the run, and not where the reduction is tried
            inside.set()
            go_on.wait(LIVE)
        return own + arrived

    def first():
        slow = Reduction("slow", adds, 0)
        outcomes.append(outcome(lambda: run(ring(carrier.names), torch.ones(100), carrier, reduce=slow)))

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(LIVE)
    outcomes.append(outcome(SECOND[second], carrier))
    go_on.set()
    thread.join(LIVE)
    tensor, carrier = ONES(6), rank.carrier(kind)
    run(ring(carrier.names), tensor, carrier)
    return outcomes, tensor.tolist()


SECOND = {
    "run": lambda carrier: run(ring(carrier.names), torch.ones(100), carrier),
    "calibrate": lambda carrier: calibrate(carrier, repeats=1),
    "barrier": lambda carrier: carrier.barrier(),
}


@each_carrier
@pytest.mark.parametrize("second", SECOND)
def test_a_carrier_is_for_one_thread_at_a_time(kind, second):
    """Which of two comes first is not the same on all ranks: none of their sums would be right."""
    for (one, other), values in ranks()(in_two_threads, kind, second, n=2):
        assert sorted(type(each).__name__ for each in (one, other)) == ["ProcessesError", "RankLost"]
        assert "another thread is using this carrier" in str(one)
        assert "make a carrier for each thread" in str(other) and values == [2.0] * 6


# ---------------------------------------------------------------- common memory

SCATTER = reduce_scatter(["rank0", "rank1", "rank2"], direct=True)
COMMON = {  # how many elements a rank asks for, and the error
    "a size that is none": (
        lambda rank: -1,
        r"(rank 0 ended the run \(refused: )?SharedMemory.tensor\(-1\): give a number of elements, or a tensor",
    ),
    "another size": (
        lambda rank: at_1(rank, 5, 6),
        "rank 1 asks for one tensor of 5 elements of torch.float32, rank 0 for 6 elements of "
        "torch.float32: all ranks must ask "
        "for the same$",
    ),
}


def in_common(rank, case):
    return outcome(lambda: rank.carrier(SharedMemory).common(COMMON[case][0](rank)))


@pytest.mark.parametrize("case", COMMON)
def test_common_memory_of_unlike_sizes_is_refused(case):
    for error in ranks()(in_common, case, n=3):
        assert isinstance(error, TensorError | RankLost) and re.match(COMMON[case][1], str(error)), repr(error)


def the_same_memory(rank, begin):
    carrier = rank.carrier(SharedMemory)
    whole = carrier.common(18)
    return outcome(run, SCATTER, whole[begin * rank.number :][:6], carrier), whole.tolist()


@pytest.mark.parametrize("begin", [0, 5], ids=["twice", "overlapping"])
def test_ranks_may_not_work_on_the_same_memory(begin):
    for error, whole in ranks()(the_same_memory, begin, n=3):
        assert isinstance(error, TensorError) and whole == [0.0] * 18
        assert sorted(str(error).split(" share memory: ")[0].split(" and ")) == ["rank0", "rank1"]


@pytest.mark.parametrize("given", [-1, True, 1.5, "10", None])
def test_shared_memory_has_a_whole_number_of_elements(given):
    with pytest.raises(TensorError, match="give a number of elements, or a tensor to copy"):
        SharedMemory.tensor(given)


def test_memory_that_is_not_there_is_not_given():
    with pytest.raises(TensorError, match="there is no room for .* bytes that processes share"):
        SharedMemory.tensor(2**58)


# ---------------------------------------------------------------- who and where


@pytest.fixture
def environment(monkeypatch):
    """Sets what torchrun would set."""
    names = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME"
    for name in (*names, *chain(*LAUNCHERS.values())):
        monkeypatch.delenv(name, raising=False)
    return lambda **values: [monkeypatch.setenv(name, str(value)) for name, value in values.items()]


TASKS = [
    ({"SLURM_PROCID": 0, "SLURM_NTASKS": 2}, "task 0 of 2 of Slurm"),
    ({"OMPI_COMM_WORLD_RANK": 3, "OMPI_COMM_WORLD_SIZE": 4}, "task 3 of 4 of Open MPI"),
    ({"PMI_RANK": 1, "PMI_SIZE": 4, "SLURM_PROCID": 0, "SLURM_NTASKS": 2}, "task 1 of 4 of MPI"),
]


@pytest.mark.parametrize("variables, who", TASKS, ids=lambda value: value if isinstance(value, str) else "")
def test_task_of_another_launcher_is_named_with_what_to_start(environment, variables, who):
    environment(**variables)
    with pytest.raises(NoRanks, match=rf"{who}.*'RANK' in the environment.* one torchrun on each node.*export RANK"):
        from_environment(1.0)


def test_only_task_of_another_launcher_starts_torchrun_itself(environment):
    """Such as a notebook on a node of Slurm."""
    environment(SLURM_PROCID=0, SLURM_NTASKS=1)
    with pytest.raises(NoRanks, match="torchrun --local-addr=127.0.0.1"):
        from_environment(1.0)


@each_carrier
def test_a_process_that_is_not_one_of_several_says_how_to_start_them(kind, environment):
    with pytest.raises(NoRanks) as error:
        kind()
    words = ("'RANK' in the environment", "torchrun --local-addr=127.0.0.1", "d2lps.ranks(4) and %%px")
    assert all(each in str(error.value) for each in words)
    environment(RANK="zero", WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=1)
    with pytest.raises(NoRanks, match="invalid literal for int.*'zero' in the environment"):
        kind()


@each_carrier
def test_a_port_in_use_and_a_store_that_does_not_answer_are_named(kind, environment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        with pytest.raises(ProcessesError, match=f"port {port} on 127.0.0.1 is in use: set MASTER_PORT to a free one"):
            kind()
    environment(RANK=1)
    with pytest.raises(ProcessesError, match=rf"no store answers on 127.0.0.1:{port} within 0.5 s: is MASTER_PORT"):
        kind(deadline=0.5)


def no_address(name):
    """Return Python's own sentence on a name without address, which differs between its versions."""
    with pytest.raises((OSError, UnicodeError)) as caught:
        socket.getaddrinfo(name, 80)
    return str(caught.value)


WRONG = {  # the fault of the environment, and its message
    "a rank beyond the size": ({"RANK": 3}, "RANK=3 and WORLD_SIZE=2: RANK must be at least 0 and less than WORLD_"),
    "a rank below 0": ({"RANK": -1}, "RANK=-1 and WORLD_SIZE=2: RANK must be"),
    "no rank at all": ({"RANK": 0, "WORLD_SIZE": 0}, "RANK=0 and WORLD_SIZE=0: RANK must be"),
    "a port too large": ({"MASTER_PORT": 99999}, "MASTER_PORT=99999: a port is a number from 1 to 65535"),
    "port 0": ({"MASTER_PORT": 0}, "MASTER_PORT=0: a port is"),
    "a name without address": ({"MASTER_ADDR": "nosuch.invalid"}, "MASTER_ADDR='nosuch.invalid' has no address (Name"),
    "brackets": ({"MASTER_ADDR": "[::1]"}, "MASTER_ADDR='[::1]' has no address (Name"),
    "a port in the name": ({"MASTER_ADDR": "127.0.0.1:80"}, "MASTER_ADDR='127.0.0.1:80' has no address (Name"),
    "an empty name": ({"MASTER_ADDR": ""}, "MASTER_ADDR='' has no address (Name"),
    "a name that is too long": ({"MASTER_ADDR": "a" * 70}, f"has no address ({no_address('a' * 70)})"),
}


@each_carrier
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_the_environment_is_named_at_once(kind, number, case, environment):
    changes, sentence = WRONG[case]
    environment(**{"RANK": number, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29999} | changes)
    with pytest.raises(ProcessesError, match=re.escape(sentence)):
        kind(deadline=10 * LIVE)  # it does not wait for that, or this test would be ended
    with pytest.raises(KVError, match=re.escape(sentence)):
        kvstore.create("dist_sync")


def test_a_name_server_that_is_busy_may_answer_later(environment, monkeypatch):
    looked = []

    def getaddrinfo(name, port):
        looked.append(name)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment(RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with Processes() as alone:
        assert alone.size == 1
    assert looked == ["127.0.0.1"]


@each_carrier
def test_a_port_that_only_root_may_use_is_named_at_once(kind, environment, monkeypatch):
    def refused(*_, **__):
        why = "port: 80, useIpv6: 0, code: -13, name: EACCES, message: permission denied"
        raise torch.distributed.DistNetworkError(f"The server socket has failed to bind. {why}")

    environment(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=80)
    monkeypatch.setattr(torch.distributed, "TCPStore", refused)
    with pytest.raises(ProcessesError, match=r"rank 0 cannot listen on MASTER_PORT=80 \(permission denied\): set"):
        kind()


@each_carrier
@pytest.mark.parametrize("deadline", [0, -1, True, "30", None, float("nan"), float("inf")])
def test_a_deadline_is_seconds(kind, deadline):
    with pytest.raises(ProcessesError, match=r"deadline = .*: give a number of seconds, more than 0"):
        kind(deadline=deadline)


@each_carrier
@pytest.mark.parametrize("more", [{}, {"rank": 0}, {"rank": 2, "size": 2}, {"rank": -1, "size": 2}, {"size": 2}])
def test_a_store_comes_with_rank_and_size(kind, more):
    with pytest.raises(ProcessesError, match="give rank and size with the store, 0 ≤ rank < size"):
        kind(store=torch.distributed.HashStore(), **more)


def with_backends(rank, backends):
    return outcome(lambda: rank.carrier(Processes, backend=backends[rank.number]).backend)


@pytest.mark.parametrize(
    "backends, found",
    [
        (["gloo", "gloo"], "gloo"),
        (["gloo", None], "gloo"),
        (["gloo", "nccl"], "some ranks ask for gloo and some for nccl: give the same backend on all"),
    ],
)
def test_all_ranks_take_one_backend(backends, found):
    assert list(map(str, ranks()(with_backends, backends, n=2))) == [found] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="hardware: this machine has a CUDA GPU")
def test_nccl_wants_a_gpu_for_every_rank():
    for error in ranks()(with_backends, ["nccl", "nccl"], n=2):
        assert "the host of rank 0 has 0 for 2 ranks: start fewer ranks, or use backend='gloo'" in str(error)
    assert ranks()(with_backends, [None, None], n=2) == ["gloo"] * 2


def test_a_backend_is_gloo_or_nccl():
    with pytest.raises(ProcessesError, match="backend = 'mpi': write 'gloo' or 'nccl'"):
        Processes(backend="mpi")
