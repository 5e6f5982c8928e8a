"""Profiles are read event by event, whatever wrote them; what is no profile is refused with a sentence."""

import gzip
import io
import json

import pytest
from helpers.profiles import ADD, GEMM, call, kernel, step, write

from d2lps.profile import ProfileError, read, reading

EVENTS = (step(3, 0, 100), kernel(GEMM, 0, 20), kernel(ADD, 10, 30))


def pieces(text, size):
    """A stream that gives so many characters at a time."""
    stream = io.StringIO(text)
    stream.read = lambda _, read=stream.read: read(size)
    return stream


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_trace_is_decoded_alike_in_pieces_of_any_size(size, indent):
    content = {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": [*EVENTS], "traceName": "é\\"}
    found = [*reading.events(pieces(json.dumps(content, indent=indent), size))]
    assert [value for key, value in found if key == "traceEvents"] == [*EVENTS]
    rest = {key: value for key, value in content.items() if key != "traceEvents"}
    assert {key: value for key, value in found if key != "traceEvents"} == rest
    assert [*reading.events(pieces(json.dumps([*EVENTS], indent=indent), size))] == [
        ("traceEvents", event) for event in EVENTS
    ]


def test_events_are_forgotten_while_the_file_is_read():
    """Of a long list no more text is kept than two pieces and an event."""
    event = json.dumps(kernel(ADD, 0, 1))
    text = reading._Text(io.StringIO("[" + ", ".join([event] * 20_000) + "]"))
    text.next()
    assert sum(len(text.text) <= reading.PIECE + 2 * len(event) for _ in text.items("]")) == 20_000
    assert 20_000 * len(event) > 2 * reading.PIECE


def test_rank_comes_from_the_file_then_from_its_name_then_from_its_place(tmp_path):
    def plain(name, **head):
        (tmp_path / name).write_text(json.dumps({**head, "traceEvents": [*EVENTS]}))
        return tmp_path / name

    assert [profile.rank for profile in read([plain("a.json"), plain("b.json")])] == [0, 1]
    assert read([plain("job_rank-12.Jul.json")])[0].rank == 12
    assert read([plain("rank5.json", distributedInfo={"rank": 6})])[0].rank == 6
    with pytest.raises(ProfileError, match=r"rank 6 \(rank5.json, rank6.json\)"):
        read([tmp_path / "rank5.json", plain("rank6.json")])


@pytest.mark.parametrize(
    "name, part",
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "matrices"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>", "matrices"),
        ("pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits", "matrices"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", "matrices"),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>", "others"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>", "others"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "message"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_bfloat(ncclDevComm*)", "message"),
    ],
)
def test_a_kernel_belongs_to_the_part_that_its_name_tells(name, part):
    assert reading._part("kernel", name) == part


@pytest.mark.parametrize(
    "written, kind",
    [
        ("_allgather_base", "all_gather"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL(x)", "broadcast"),
        ("send", "p2p"),
        ("recv", "p2p"),
    ],
)
def test_a_collective_has_one_name_however_it_is_written(written, kind):
    assert reading._kind(written) == kind


def test_operators_of_the_processor_count_only_without_a_gpu(tmp_path):
    operators = [call("aten::addmm", 0, 20, "cpu_op"), call("aten::gelu", 20, 30, "cpu_op")]
    operators += [call("c10d::allreduce_", 30, 35, "cpu_op"), call("gloo:all_reduce", 30, 50, thread=2)]
    (alone,) = read([write(tmp_path, 0, step(3, 0, 100), *operators)])
    assert not alone.gpu and (*alone.matrices.end,) == (20_000,) and (*alone.others.end,) == (30_000,)
    assert [(message.collective, message.end) for message in alone.messages] == [("all_reduce", 50_000)]
    (beside,) = read([write(tmp_path, 0, *EVENTS, *operators)])
    assert beside.gpu and len(beside.others.start) == 1 and beside.messages == []


GOOD = json.dumps({"traceEvents": [*EVENTS]}).encode()


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "ends in the middle"),
        (GOOD[:-40], "ends in the middle"),
        (gzip.compress(GOOD)[:-20], "ends in the middle"),
        (b"rank 0: all is well", "ValueError"),
        (GOOD.replace(b'"dur": 20', b'"dur": -20'), "dur = -20"),
        (GOOD.replace(b'"ts": 10', b'"ts": "soon"'), "ValueError"),
        (b'{"traceEvents": []}', "no kernels and no operators"),
        (b'{"d2lps": "trace", "traceEvents": 7}', "no kernels and no operators"),
        (b'{"traceEvents": [1, null, {"ph": "X"}, "x"]}', "no kernels and no operators"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_name(content, why, tmp_path):
    (tmp_path / "step.json").write_bytes(content)
    with pytest.raises(ProfileError, match=f"step.json .*{why}"):
        read([tmp_path / "step.json"])


def test_a_file_that_is_not_there_and_no_file_are_refused(tmp_path):
    with pytest.raises(ProfileError, match="nowhere.json .*No such file"):
        read([tmp_path / "nowhere.json"])
    with pytest.raises(ProfileError, match="one per rank"):
        read([])
