"""kafka-storage: directories that are prepared once, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_broker.tools.storage import info, main

ID = "MkU3OEVBNTcwNTJENDM2Qg"


def properties(tmp_path: Path, *more: str) -> str:
    path = tmp_path / "server.properties"
    lines = ["node.id=1", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}", "listeners=PLAINTEXT://127.0.0.1:0", *more]
    path.write_text("\n".join(lines))
    return str(path)


def test_directories_are_formatted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = properties(tmp_path)
    assert main(["format", "-t", ID, "-c", file, "--standalone"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Formatting metadata directory {tmp_path / 'a'} with metadata.version 4.3-IV0.",
        f"Formatting data directory {tmp_path / 'b'} with metadata.version 4.3-IV0.",
    ]
    assert main(["format", "-t", ID, "-c", file]) == 1
    assert f"Log directory {tmp_path / 'a'} is already formatted. Use --ignore" in capsys.readouterr().err
    assert main(["format", "-t", ID, "-c", file, "--ignore-formatted"]) == 0
    assert capsys.readouterr().out == "All of the log directories are already formatted.\n"
    assert main(["info", "-c", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["Found log directories:", f"  {tmp_path / 'a'}", f"  {tmp_path / 'b'}"]
    assert lines[4].startswith(f"Found metadata: {{cluster.id={ID}, directory.id=")


def test_a_bad_id_and_a_bad_file_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", "-t", "short", "-c", properties(tmp_path)]) == 1
    assert "cluster id 'short' is not 16 bytes" in capsys.readouterr().err
    assert main(["info", "-c", str(tmp_path / "missing")]) == 1
    assert "missing: No such file or directory" in capsys.readouterr().err
    voters = "controller.quorum.voters=1@127.0.0.1:9093"
    file = properties(tmp_path, voters, "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093")
    assert main(["format", "-t", ID, "-c", file, "--standalone"]) == 1
    assert "controller.quorum.voters" in capsys.readouterr().err


def test_problems_are_listed(tmp_path: Path) -> None:
    for name, cluster in (("a", ID), ("b", "AAAAAAAAAAAAAAAAAAAAAQ")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id=1\n")
    (tmp_path / "c").mkdir()
    lines, status = info([str(tmp_path / name) for name in "abcd"])
    assert status == 1
    assert lines[lines.index("Found problems:") + 1 :] == [
        "  Mismatched cluster IDs between storage directories.",
        f"  {tmp_path / 'c'} is not formatted.",
        f"  {tmp_path / 'd'} does not exist",
        "",
    ]


def test_a_random_id_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["random-uuid"]) == 0
    assert len(capsys.readouterr().out.strip()) == 22
