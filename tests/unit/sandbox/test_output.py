from benchflow_workers.sandbox.output import CappedOutput


def test_short_output_is_kept_whole() -> None:
    output = CappedOutput(10)

    for part in (b"abc", b"", b"defg", b"hij"):
        output.write(part)

    assert output.kept() == b"abcdefghij"
    assert output.total_bytes == 10


def test_long_output_keeps_first_and_last_half() -> None:
    output = CappedOutput(10)

    output.write(b"abcdefgh")
    output.write(b"ijklmnopqrstuvwxyz")

    assert output.kept() == b"abcdevwxyz"
    assert output.total_bytes == 26


def test_many_small_writes_equal_one_large_write() -> None:
    output = CappedOutput(7)

    for byte in b"0123456789" * 20:
        output.write(bytes([byte]))

    assert output.kept() == b"0123789"
    assert output.total_bytes == 200


def test_odd_and_tiny_limits_are_exact() -> None:
    kept = []
    for limit in (0, 1, 3):
        output = CappedOutput(limit)
        output.write(b"abcdef")
        kept.append(output.kept())

    assert kept == [b"", b"a", b"abf"]


def test_endless_output_stays_within_twice_the_limit() -> None:
    output = CappedOutput(1000)

    for _ in range(10_000):
        output.write(b"x" * 999)

    assert len(output._head) + len(output._tail) <= 2000
    assert output.total_bytes == 9_990_000
