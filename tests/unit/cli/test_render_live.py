"""Progress on a terminal: what is drawn, how often, and what is left on the screen."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from benchflow_client.cli.live import LiveProgress, PlainProgress, draw_view
from benchflow_client.watch import AgentLine, WatchView

VIEW = WatchView(
    job="calm-otter-7f3a",
    state="open",
    total=24,
    finished=17,
    running=4,
    waiting=3,
    phases=(("agent", 2), ("verifying", 2)),
    waiting_for="slots",
    outcomes=(("passed", 9), ("failed", 8)),
    retried=0,
    agents=(AgentLine("oracle", 9, 9, 1.0), AgentLine("nop", 0, 8, 0.0)),
    elapsed_s=11,
    eta_s=5,
    cancelled="",
    taken_at=0.0,
)


def drawn(view, *, width=80, is_ascii=False):
    return [line.plain for line in draw_view(view, width=width, is_ascii=is_ascii)]


def test_block_shows_bar_counts_and_agents():
    assert drawn(VIEW) == [
        " calm-otter-7f3a  ━━━━━━━━━━━━━━━━━━━━╸────────  17/24   0:11   eta 0:05",
        " running 4 (agent 2, verifying 2)   waiting 3 (slots)   passed 9   failed 8",
        " oracle 9/9 1.00        nop 0/8 0.00",
    ]


def test_bar_is_empty_at_the_start_and_full_at_the_end():
    assert "━" not in drawn(VIEW._replace(finished=0))[0]
    assert "─" not in drawn(VIEW._replace(finished=24))[0]


def test_terminal_without_unicode_gets_a_bar_of_ascii():
    assert drawn(VIEW, is_ascii=True)[0].isascii()
    assert "#####" in drawn(VIEW, is_ascii=True)[0]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_block_fits_any_terminal(width):
    agents = tuple(AgentLine(f"agent-with-a-long-name-{n}@model", n, 9, n / 9) for n in range(30))
    view = VIEW._replace(
        job="j" * 63, agents=agents, waiting_for="paused by ana: the quota is used up", total=100_000
    )

    lines = drawn(view, width=width)

    assert max(map(cell_len, lines)) <= width
    assert lines[-1] == " 30 agents in all"


def test_redraws_at_most_four_times_a_second_and_always_the_last():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    now = [0.0]
    live = LiveProgress(console, tick=lambda: now[0])

    with live:
        for step in range(100):
            now[0] = step / 100
            live.update(VIEW._replace(finished=step // 10, elapsed_s=float(step)))
        inside = console.file.getvalue()

    assert inside.count("/24") == 4
    assert "1:39" not in inside
    assert "1:39" in console.file.getvalue()


def test_nothing_seen_yet_draws_nothing():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)

    with LiveProgress(console):
        pass

    assert "/24" not in console.file.getvalue()


def test_screen_is_given_back_after_an_error():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)

    with pytest.raises(KeyboardInterrupt):
        interrupt(LiveProgress(console))

    assert console.file.getvalue().endswith("\x1b[?25h")


def interrupt(live):
    with live:
        live.update(VIEW)
        raise KeyboardInterrupt


def test_plain_progress_writes_changes_once():
    lines = []

    with PlainProgress(lines.append) as plain:
        plain.update(VIEW)
        plain.update(VIEW)
        plain.update(VIEW._replace(finished=20, running=4, waiting=0))

    assert len(lines) == 2
    assert lines[1].startswith("calm-otter-7f3a  20/24  running 4")
