from pathlib import Path


def test_out() -> None:
    assert Path("out.txt").read_text() == "finished\n"
