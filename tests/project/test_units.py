"""Quantities with their units: reading, refusals with their sentences, and printing."""

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lps.units import Bandwidth, UnitError, bandwidth, seconds, show_error, show_number, show_seconds, show_size, size

READ = [
    (bandwidth, "16 GB/s", 16e9),
    (bandwidth, "16GB/s", 16e9),
    (bandwidth, " 16 GBps ", 16e9),
    (bandwidth, "128 Gbit/s", 16e9),
    (bandwidth, "400 Mbit/s", 50e6),
    (bandwidth, "15.75 GB/s", 15.75e9),
    (bandwidth, "1.6e10 B/s", 16e9),
    (bandwidth, "1 GiB/s", 2**30),
    (bandwidth, Bandwidth(16e9), 16e9),
    (bandwidth, Bandwidth("inf"), math.inf),
    (size, "160 MB", 160_000_000),
    (size, "4 MiB", 4 * 2**20),
    (size, "8 bit", 1),
    (size, "12 B", 12),
    (size, "1.001 kB", 1001),
    (size, "0 B", 0),
    (size, 7, 7),
    (seconds, "7.5 ms", 0.0075),
    (seconds, "5 us", 5e-6),
    (seconds, "10 µs", 1e-5),
    (seconds, "10 μs", 1e-5),
    (seconds, "2 s", 2.0),
    (seconds, "3 ns", 3e-9),
    (seconds, 0.25, 0.25),
    (seconds, 0, 0.0),
]


@pytest.mark.parametrize("read, given_, expected", READ)
def test_quantities_are_read_exactly(read, given_, expected):
    assert read(given_) == expected


REFUSED = [
    (bandwidth, 16, "bandwidth 16 has no unit: write '16 GB/s' (bytes) or '128 Gbit/s' (bits)"),
    (bandwidth, 16e9, "bandwidth 16000000000.0 has no unit: write '16 GB/s' (bytes) or '128 Gbit/s' (bits)"),
    (bandwidth, "16", "bandwidth '16' has no unit: write '16 GB/s' (bytes) or '128 Gbit/s' (bits)"),
    (bandwidth, "16 Gb/s", "bandwidth '16 Gb/s' is ambiguous: 'b' is read as bits, so this is 16 Gbit/s = 2 GB/s"),
    (bandwidth, "100 Mbps", "bandwidth '100 Mbps' is ambiguous: 'b' is read as bits, so this is 100 Mbit/s = 12"),
    (size, "160 Mb", "size '160 Mb' is ambiguous: 'b' is read as bits, so this is 160 Mbit = 20 MB; write '160 MB' if"),
    (bandwidth, "-16 GB/s", "bandwidth '-16 GB/s' is not positive: a link carries more than 0 bytes per second"),
    (bandwidth, "0 GB/s", "bandwidth '0 GB/s' is not positive: a link carries more than 0 bytes per second"),
    (bandwidth, Bandwidth("nan"), None),
    (bandwidth, Bandwidth(-1.0), None),
    (bandwidth, "1e999 GB/s", None),
    (bandwidth, "fast", "bandwidth 'fast' is not a number with a unit, such as '16 GB/s'"),
    (bandwidth, "1.2.3 GB/s", "bandwidth '1.2.3 GB/s' is not a number with a unit, such as '16 GB/s'"),
    (bandwidth, "16 gb/s", "bandwidth '16 gb/s' has a unit that d2lps does not know, 'gb/s': write '16 GB/s' (bytes)"),
    (bandwidth, "1,5 GB/s", None),
    (bandwidth, "160 MB", "bandwidth '160 MB' needs `per second`: write '16 GB/s' (bytes) or '128 Gbit/s' (bits)"),
    (bandwidth, None, None),
    (bandwidth, True, None),
    (bandwidth, b"16 GB/s", None),
    (size, -1, "size -1 is negative"),
    (size, "-1 MB", "size '-1 MB' is negative"),
    (size, "1.5 B", "size '1.5 B' is not a whole number of bytes"),
    (size, "1 bit", "size '1 bit' is not a whole number of bytes"),
    (size, "1e999 MB", None),
    (size, 160e6, "size 160000000.0 is neither a whole number of bytes nor a text such as '160 MB'"),
    (size, True, "size True is neither a whole number of bytes nor a text such as '160 MB'"),
    (size, None, None),
    (size, "160", "size '160' has no unit: write '160 MB'"),
    (size, "160 MB/s", None),
    (seconds, "10", "time '10' has no unit that d2lps knows: write '7.5 ms', '10 us' or '2 s'"),
    (seconds, "10 min", "time '10 min' has no unit that d2lps knows: write '7.5 ms', '10 us' or '2 s'"),
    (seconds, -1, "time -1 is not a finite time of 0 or more"),
    (seconds, "-1 ms", "time '-1 ms' is not a finite time of 0 or more"),
    (seconds, math.nan, "time nan is not a finite time of 0 or more"),
    (seconds, math.inf, "time inf is not a finite time of 0 or more"),
    (seconds, True, None),
    (seconds, None, "time None is not a number with a unit, such as '7.5 ms'"),
    (seconds, "", "time '' is not a number with a unit, such as '7.5 ms'"),
]


@pytest.mark.parametrize("read, given_, sentence", REFUSED, ids=lambda v: str(v)[:20])
def test_a_refusal_names_the_reading(read, given_, sentence):
    with pytest.raises(UnitError) as error:
        read(given_)
    assert (sentence or repr(given_)) in str(error.value)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("read, unit", [(bandwidth, "B/s"), (size, "B"), (seconds, "s")])
def test_a_number_of_a_hundred_million_digits_is_refused_and_not_worked_out(read, unit):
    with pytest.raises(UnitError):
        read(f"1e99999999 {unit}")


@given(st.text(alphabet="0123456789.-+eE kKMGTPiBbits/µun\n٣", max_size=12))
def test_a_text_is_read_or_refused_and_nothing_else_happens(words):
    for read in (bandwidth, size, seconds):
        try:
            assert read(words) >= 0
        except UnitError as error:
            assert repr(words) in str(error)


@given(st.integers(0, 10**7), st.sampled_from([("kB", 3), ("MB", 6), ("GB", 9)]))
def test_decimal_fractions_of_a_unit_are_whole_bytes(count, unit):
    name, digits = unit
    whole, rest = divmod(count, 10**digits)
    assert size(f"{whole}.{rest:0{digits}} {name}") == count


@given(st.integers(0, 10**6), st.sampled_from([("ms", -3), ("us", -6), ("ns", -9)]))
def test_times_are_the_nearest_float(count, unit):
    name, power = unit
    assert seconds(f"{count} {name}") == float(Fraction(count) * Fraction(10) ** power)


SHOWN = [
    (show_number, 1010.0, "1010"),
    (show_number, 0.25, "0.25"),
    (show_number, 668100.0, "668\u00a0100"),
    (show_number, 2.1284e9, "2.128·10⁹"),
    (show_number, 1e26, "10²⁶"),
    (show_number, -6.25e-8, "-6.25·10⁻⁸"),
    (lambda value: show_number(value, 2), 2345.0, "2300"),
    (show_error, 9e-6, "< 10⁻⁵"),
    (show_error, 0.0, "< 10⁻⁵"),
    (show_error, 1e-5, "10⁻⁵"),
    (show_error, -0.123, "-0.12"),
    (show_error, float("nan"), "nan"),
    (lambda value: show_error(value, 1e-12), 9e-6, "9·10⁻⁶"),
    (show_size, 160e6, "160 MB"),
    (show_size, 12_346e12, "12\u00a0350 TB"),
    (show_size, 7500, "7.5 kB"),
    (show_size, 12, "12 B"),
    (show_size, 0, "0 B"),
    (show_size, 1e12, "1 TB"),
    (show_size, 999_999, "1 MB"),
    (show_size, 999_600, "999.6 kB"),
    (show_size, 123_456_789, "123.5 MB"),
    (show_size, 4e7 / 3, "13.33 MB"),
    (show_seconds, 0.06, "60 ms"),
    (show_seconds, 0.0075, "7.5 ms"),
    (show_seconds, 42e-6, "42 µs"),
    (show_seconds, 5.185185e-3, "5.185 ms"),
    (show_seconds, 40.0, "40 s"),
    (show_seconds, 3e-9, "3 ns"),
    (show_seconds, 0.99999, "1 s"),
    (show_seconds, 0.9996, "999.6 ms"),
    (show_seconds, 0.0, "0 s"),
]


@pytest.mark.parametrize("show, value, expected", SHOWN)
def test_what_is_printed(show, value, expected):
    assert show(value) == expected


@given(st.floats(1e-30, 1e30))
def test_no_number_is_printed_as_programs_do(value):
    for show, unit in ((show_number, ""), (show_size, r" [kMGT]?B"), (show_seconds, " [mµn]?s")):
        number = r"[\d\u00a0]+(?:\.\d+)?(?:·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?|10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+"
        assert re.fullmatch(f"(?:{number}){unit}", show(value)), show(value)


def test_the_number_of_an_ambiguous_quantity_is_repeated_as_it_was_written():
    with pytest.raises(UnitError, match="this is 2000000 Mbit/s = 250 GB/s; write '2000000 MB/s' if you mean bytes"):
        bandwidth("2000000 Mb/s")


@given(st.floats(1e-9, 1e6))
def test_a_printed_time_is_read_back_to_four_digits(time):
    assert seconds(show_seconds(time)) == pytest.approx(time, rel=5.1e-4)


@given(st.floats(1e3, 1e15))
def test_a_printed_bandwidth_is_read_back_to_four_digits(rate):
    assert bandwidth(str(Bandwidth(rate))) == pytest.approx(rate, rel=5.1e-4)


def test_a_bandwidth_knows_its_unit():
    assert str(bandwidth("128 Gbit/s")) == "16 GB/s"
    assert str(Bandwidth("inf")) == "unlimited"
    assert "16 GB/s" in repr(bandwidth("16 GB/s"))
    assert bandwidth("16 GB/s") / 2 == 8e9
