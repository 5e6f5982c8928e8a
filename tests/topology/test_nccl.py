"""NCCL's description of its host as a topology: the same as that of ``nvidia-smi topo -m`` on the same host."""

from pathlib import Path

import pytest

from d2lps import Topology, nvswitch, rails
from d2lps.topology import TopologyError, nccl, nvidia

HERE = Path(__file__).parent
H100 = (HERE / "nccl/hgx_h100_eight.xml").read_text("utf-8")
SMI = {path.stem: path.read_text("utf-8") for path in (HERE / "nvidia_smi").glob("*.txt")}


def written(table, sm="70", speed='link_speed="8.0 GT/s PCIe" link_width="16"'):
    """A table as NCCL would describe it: a bridge above each card, with the GPUs that are beside the card."""
    bus = {gpu: f"0000:{i:02x}:00.0" for i, gpu in enumerate(table.gpus)}
    lines, left = ['<system version="1">'], [*table.others]
    for cpu in dict.fromkeys(table.affinity.values()):
        gpus = [gpu for gpu in table.gpus if table.affinity[gpu] == cpu]
        lines.append(f'<cpu numaid="0" affinity="{cpu}">')
        for card in [card for card in left if any(table.codes[gpu, card] in nvidia.SWITCHES for gpu in gpus)]:
            left.remove(card)
            lines.append(
                f'<pci busid="b-{card}"><pci busid="n-{card}"><nic><net name="{card}" speed="100000"/></nic></pci>'
            )
            for gpu in gpus:
                if table.codes[gpu, card] in nvidia.SWITCHES:
                    links = [(bus[other], table.nvlinks(gpu, other)) for other in table.gpus if other != gpu]
                    links = "".join(f'<nvlink target="{to}" count="{n}" tclass="0x030200"/>' for to, n in links if n)
                    lines.append(f'<pci busid="{bus[gpu]}" {speed}><gpu dev="{gpu[3:]}" sm="{sm}">{links}</gpu></pci>')
            lines.append("</pci>")
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>"])


def test_a_host_with_nvswitch_is_what_nvidia_smi_shows():
    found, shown = Topology.from_nccl(H100), Topology.from_nvidia_smi(SMI["hgx_h100_eight"])
    assert found == shown == nvswitch(8, links=18)
    assert found.nics == shown.nics == {f"gpu{i}": f"ibp{i}" for i in range(8)}
    assert nccl.read(H100)[1] == 50e9  # of the cards that GPUs use; eth0 is slower
    assert rails(2, found).nics["host1/gpu3"] == "host1/ibp3"


def test_a_mesh_on_pcie_switches_is_what_nvidia_smi_shows():
    table = nvidia.parse(SMI["dgx1v"])
    shown = Topology.from_nvidia_smi(SMI["dgx1v"], pcie=f"{8 / 8 * 128 / 130 * 16} GB/s")
    found = Topology.from_nccl(written(table))
    assert (found.kinds, found.nics) == (shown.kinds, shown.nics)
    for link, same in zip(found.links, shown.links, strict=True):
        assert (link.src, link.dst, link.count) == (same.src, same.dst, same.count)
        assert link.bandwidth == pytest.approx(same.bandwidth, rel=1e-9)


@pytest.mark.parametrize(
    "sm, rate", [("60", 20e9), ("70", 25e9), ("90", 25e9), ("100", 50e9), ("120", 50e9), ("", 25e9)]
)
def test_nvlinks_are_as_fast_as_the_generation_of_the_gpu(sm, rate):
    found = Topology.from_nccl(written(nvidia.parse(SMI["dgx1v"]), sm))
    assert found.route("gpu0", "gpu1")[0].bandwidth == rate


@pytest.mark.parametrize("speed", ["", 'link_speed="Unknown" link_width="0"', 'link_speed="7 GT/s" link_width="x"'])
def test_a_pcie_link_of_unknown_speed_has_the_default(speed):
    found = Topology.from_nccl(written(nvidia.parse(SMI["dgx1v"]), speed=speed))
    assert next(link for link in found.links if link.dst == "switch0").bandwidth == 16e9


BOMB = '<!DOCTYPE s [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><system>&b;</system>'


@pytest.mark.parametrize(
    "source, why",
    [
        ("", "no element found"),
        ("GPU0 X NV4", "syntax error"),
        ("<system><cpu></system>", "mismatched tag"),
        ('<system version="1"><cpu numaid="0"/></system>', "<gpu> × 0"),
        (BOMB, "<!DOCTYPE …>"),
        ('<?xml version="1.0"?>\n' + BOMB, "<!DOCTYPE …>"),
        ("<system>" + "<cpu>" * 100_000 + "</cpu>" * 100_000 + "</system>", "<gpu> × 0"),
    ],
)
def test_what_is_no_such_file_is_refused_in_one_sentence(source, why):
    with pytest.raises(TopologyError) as error:
        Topology.from_nccl(source)
    assert str(error.value).startswith("this is not the XML that NCCL writes into the file NCCL_TOPO_DUMP_FILE: ")
    assert why in str(error.value)
