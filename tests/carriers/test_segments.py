"""Memory that processes share: tensors inside it, and tensors in the place of an old segment."""

import mmap
import weakref

import pytest
import torch

from d2lps.carriers.segments import Segment, location_of


def test_a_tensor_in_a_segment_is_found_where_it_begins():
    segment = Segment(1 << 16)
    tensor = segment.tensor(1000, torch.float32)[10:]
    location = location_of(tensor)
    assert (location.path, location.inode, location.offset, location.elements) == (segment.path, segment.inode, 40, 990)
    assert location_of(torch.ones(3)) is None


@pytest.mark.parametrize("who", ["nobody", "another segment"])
def test_a_tensor_in_the_place_of_an_old_segment_is_not_in_it(who):
    """Somebody may still name a segment that is unmapped, while others get its addresses."""
    gone, kept = Segment(1 << 20), []
    gone.memory.close()
    for _ in range(100):
        if who == "nobody":
            kept.append(torch.frombuffer(mmap.mmap(-1, gone.nbytes), dtype=torch.uint8))
        else:
            kept.append(Segment(gone.nbytes).bytes())
        if kept[-1].data_ptr() == gone.address:
            break
    else:
        pytest.skip("this system gives no address a second time")
    location = location_of(kept[-1])
    assert location is None if who == "nobody" else location.inode != gone.inode


def test_a_segment_that_no_other_process_can_open_is_not_named():
    segment = Segment(1 << 16)
    tensor = segment.tensor(1000, torch.float32)
    segment.shut()
    assert location_of(tensor) is None


def test_only_a_tensor_keeps_its_segment():
    segment = Segment(1 << 16)
    tensor, known = segment.tensor(1000, torch.float32), weakref.ref(segment)
    del segment
    assert known() is not None and location_of(tensor) is not None
    del tensor
    assert known() is None
