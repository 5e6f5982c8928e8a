"""Each guard of the store is taken away in turn, and a test must fail; with the guard it passes in its own file."""

from pathlib import Path

import pytest
from helpers.mutants import always, ever, instead, mutate, never, run, zero

from d2lps.kvstore import KVError

HERE = Path(__file__).parent
STORE = "d2lps.kvstore.server.store:SlotStore"
RULES = "d2lps.kvstore.replication.replica:Replica"
CHANNEL = "d2lps.kvstore.wire.channel:Channel"
CHECKSUM = "d2lps.kvstore.wire.frames:Checksum"
HANDSHAKE = "d2lps.kvstore.wire.handshake"

TWICE = "counted.py::test_a_push_that_comes_twice_counts_once_where_it_is_applied_at_once"
SECOND = "bits.py::test_a_second_push_waits_for_its_round_and_says_whose_is_missing"
ORDERED = "bits.py::test_the_sum_is_taken_in_the_order_of_the_ranks"
PLACES = "wire.py::test_blocks_that_change_places_are_noticed"
FORGED = "unauthenticated.py::test_a_forged_frame_changes_nothing[goodbye]"
FLIPPED = "wire.py::test_every_flipped_bit_is_noticed[None-False]"
# What is gone: (the test that must fail, (the function, what is changed in it, …), …).
MUTANTS = {
    "a push counts as often as it comes": (
        TWICE,
        (f"{STORE}.admit", zero("counted"), never("counted")),
        (f"{RULES}.push", ever("number", "rounds")),
    ),
    "a push does not wait for the round before": (SECOND, (f"{STORE}.admit", never("version"))),
    "no order of the ranks": (ORDERED, (f"{RULES}._next", never("live"))),
    "no CRC of a header": (FLIPPED, (f"{CHANNEL}.receive", never("crc32", "head"))),
    "no CRC of a table": (FLIPPED, (f"{CHANNEL}.receive", never("crc32", "table"))),
    "no sum of a payload": (FLIPPED, (f"{CHANNEL}.into", never("digest"))),
    "a sum without places": (PLACES, (f"{CHECKSUM}.add", instead(31, 1))),
    "no code": (FORGED, (f"{CHANNEL}._verify", never("compare_digest"))),
    "a code does not count frames": (
        "wire.py::test_a_frame_that_is_played_again_is_noticed",
        (f"{CHANNEL}._code", always("number", 0)),
    ),
    "a proof without the secret": (
        "wire.py::test_another_secret_is_sent_away",
        (f"{HANDSHAKE}:_proof", always("secret", b"")),
    ),
    "others may read a secret": (
        "wire.py::test_a_secret_that_others_can_read_is_refused",
        (f"{HANDSHAKE}:read_secret", instead(0o077, 0)),
    ),
}


@pytest.mark.fault("O", "a guard taken away: dedupe, order, waiting, CRC, sum, code, proof")
@pytest.mark.parametrize("what", MUTANTS)
def test_a_test_fails_without_a_guard(what, monkeypatch, tmp_path):
    test, *changes = MUTANTS[what]
    for where, *each in changes:
        mutate(monkeypatch, where, *each)
    failures = run(f"{HERE}/test_kvstore_{test}", tmp_path / "run")
    # An assertion fails, or the store breaks its promise; any other error would be a broken mutant.
    assert failures and all(isinstance(error, AssertionError | pytest.fail.Exception | KVError) for error in failures)
