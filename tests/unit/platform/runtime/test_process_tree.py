"""Tests of `process_tree.kill_descendants` in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_LISTS_A_CHILD_THAT_THEN_DIES = """
import os, signal
from headrace.runtime import process_tree

process_tree.adopt_orphans()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.closerange(0, 3)  # so that the test does not wait for this process if it survives
    if os.fork() == 0:
        signal.alarm(60)
        os.write(writer, b"started")
    signal.pause()
os.read(reader, 100)

children_of = process_tree.children_of

def children_of_before_the_death_of_the_child(pid):
    children = children_of(pid)
    if pid == os.getpid() and child in children:
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # the child is a zombie, and the grandchild an orphan
    return children

process_tree.children_of = children_of_before_the_death_of_the_child
process_tree.kill_descendants()
print(children_of(os.getpid()))
"""

_SPARES_A_CHILD = """
import os, signal
from headrace.runtime import process_tree

process_tree.adopt_orphans()

def start():
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        signal.alarm(60)
        signal.pause()
    return child

spared, other = start(), start()
process_tree.kill_descendants(spare={spared})
print(process_tree.children_of(os.getpid()) == [spared])
os.kill(spared, signal.SIGKILL)
"""


def test_orphans_of_a_child_that_dies_while_the_children_are_listed_are_killed() -> None:
    assert _run(_LISTS_A_CHILD_THAT_THEN_DIES) == "[]"


def test_kill_descendants_does_not_kill_the_children_in_its_argument_spare() -> None:
    assert _run(_SPARES_A_CHILD) == "True"


def _run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    ).stdout.strip()
