"""Tests of kafka-storage: formatting and showing log directories, and the tables of Kafka's feature versions."""

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


def test_formatted_log_directory_cannot_be_formatted_again_without_the_option_ignore_formatted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_storage_tool_rejects_invalid_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The arguments are an invalid cluster ID, a missing file, and the option `--standalone` with static voters."""
    assert main(["format", "-t", "short", "-c", properties(tmp_path)]) == 1
    assert "cluster id 'short' is not 16 bytes" in capsys.readouterr().err
    assert main(["info", "-c", str(tmp_path / "missing")]) == 1
    assert "missing: No such file or directory" in capsys.readouterr().err
    voters = "controller.quorum.voters=1@127.0.0.1:9093"
    file = properties(tmp_path, voters, "listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093")
    assert main(["format", "-t", ID, "-c", file, "--standalone"]) == 1
    assert "controller.quorum.voters" in capsys.readouterr().err


def test_storage_tool_refuses_scram_credentials_and_unsupported_protections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    credentials = "SCRAM-SHA-256=[name=a,password=b]"
    with pytest.raises(SystemExit):
        main(["format", "-t", ID, "-c", properties(tmp_path), "--add-scram", credentials])
    assert "--add-scram: not supported yet" in capsys.readouterr().err
    assert main(["format", "-t", ID, "-c", properties(tmp_path, "super.users=User:a", "ssl.client.auth=required")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert ["super.users" in lines[0], "ssl.client.auth" in lines[1], len(lines)] == [True, True, 2]
    assert not (tmp_path / "a").exists()


def test_storage_info_lists_problems_of_log_directories(tmp_path: Path) -> None:
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


def test_storage_random_uuid_has_22_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["random-uuid"]) == 0
    assert len(capsys.readouterr().out.strip()) == 22


def test_storage_format_rejects_unsupported_release_and_feature_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = properties(tmp_path)
    for option in ("--release-version=4.2", "--feature=metadata.version=29", "--feature=kraft.version=1"):
        assert main(["format", "-t", ID, "-c", file, option]) == 1
        assert "this version of headrace supports only metadata.version 4.3" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    assert (
        main(["format", "-t", ID, "-c", file, "-r", "4.3", "-f", "metadata.version=30", "-f", "share.version=0"]) == 0
    )


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["version-mapping", "-r", "4.0"], 0, "metadata.version=25 (4.0)\nkraft.version=1\ntransaction.version=2\n"),
        (["version-mapping"], 0, "metadata.version=30 (4.3-IV0)\nkraft.version=1\ntransaction.version=2\n"),
        (["version-mapping", "-r", "4.4"], 1, "Unknown metadata.version '4.4'. Supported metadata.version are: 3.3"),
        (
            ["feature-dependencies", "-f", "eligible.leader.replicas.version=1", "-f", "metadata.version=31"],
            0,
            "eligible.leader.replicas.version=1 requires:\n    metadata.version=23 (4.0-IV1)\n"
            "metadata.version=31 (4.4-IV0) has no dependencies.\n",
        ),
        (["feature-dependencies", "-f", "share.version=2"], 1, "Feature level 2 is not supported for feature share.v"),
        (["feature-dependencies", "-f", "share.version=x"], 1, "Invalid version format: x for feature share.version"),
        (["feature-dependencies", "-f", "share"], 1, "Invalid feature format: share. Expected format: 'feature=vers"),
        (["feature-dependencies", "-f", "x=1"], 1, "Unknown feature: x\n"),
    ],
)
def test_storage_version_mapping_and_feature_dependencies_match_kafkas_releases(
    arguments: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    output = capsys.readouterr()
    assert (output.err if status else output.out).startswith(text)
