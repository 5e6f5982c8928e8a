"""The checksum of a payload, taken while it comes, at the speed of memory: a CRC-32 would take as long as the way."""

import torch


class Words:
    """A 64-bit sum of words, block by block, which also tells blocks that changed places."""

    def __init__(self):
        self.sum = 0

    def add(self, block: memoryview) -> None:
        whole = len(block) & ~7
        block = bytearray(block) if block.readonly else block  # torch reads only what can be written
        found = torch.frombuffer(block, dtype=torch.int64, count=whole >> 3).sum().item() if whole else 0
        found += int.from_bytes(block[whole:], "little")
        self.sum = (self.sum * 31 + found + len(block)) & 0xFFFFFFFFFFFFFFFF
