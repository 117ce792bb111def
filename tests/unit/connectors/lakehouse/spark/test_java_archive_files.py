"""Tests of the files of Java archives: names, checksums and deletion. tests/lakehouse runs Java with an archive."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headrace_connectors.lakehouse.spark import archive
from headrace_connectors.lakehouse.spark.java import Java


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headrace" / "java"


def java(tmp_path: Path, version: str = "17.0.15", has_base: bool = True) -> Java:
    executable = tmp_path / "jdk" / "bin" / "java"
    executable.parent.mkdir(parents=True, exist_ok=True)
    executable.touch()
    base = tmp_path / "jdk" / "lib" / "server" / "classes.jsa"
    if has_base:
        base.parent.mkdir(parents=True, exist_ok=True)
        base.touch()
    return Java(executable, version, "PATH")


def make_archive(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "classes.jsa").write_bytes(b"classes" * 1000)
    archive.write_checksums(directory)
    return directory


def test_archive_is_used_only_while_it_is_undamaged(tmp_path: Path) -> None:
    found = java(tmp_path)
    assert archive.options(found) == []
    directory = make_archive(archive.archive_directory(found))
    assert archive.options(found)[0] == f"-XX:SharedArchiveFile={directory / 'classes.jsa'}"
    content = bytearray((directory / "classes.jsa").read_bytes())
    content[3000] ^= 1
    (directory / "classes.jsa").write_bytes(content)
    assert archive.options(found) == []


@pytest.mark.parametrize("damage", ["truncated", "missing", "no checksums", "empty checksums", "empty"])
def test_incomplete_archive_is_ignored(tmp_path: Path, damage: str) -> None:
    found = java(tmp_path)
    directory = make_archive(archive.archive_directory(found))
    path = directory / "classes.jsa"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no checksums":
        (directory / "checksums.json").unlink()
    else:
        (directory / "checksums.json").write_text("{}")
    assert archive.options(found) == []


def test_another_version_of_java_has_another_archive_of_the_same_environment(tmp_path: Path) -> None:
    old, new = java(tmp_path, "17.0.14"), java(tmp_path, "17.0.15")
    assert archive.archive_directory(old) != archive.archive_directory(new)
    assert archive.environment_digest(old) == archive.environment_digest(new)


def test_java_without_an_archive_of_its_own_classes_gets_one(tmp_path: Path) -> None:
    found = java(tmp_path, "21.0.8", has_base=False)
    directory = tmp_path / "a"
    base, own = directory / "base.jsa", directory / "classes.jsa"
    assert archive.dump_options(found, directory) == [
        f"-XX:SharedArchiveFile={base}",
        f"-XX:ArchiveClassesAtExit={own}",
    ]
    assert archive.use_options(found, directory)[0] == f"-XX:SharedArchiveFile={base}:{own}"


def test_java_25_uses_an_ahead_of_time_cache(tmp_path: Path) -> None:
    found = java(tmp_path, "25.0.2")
    assert archive.dump_options(found, tmp_path) == [f"-XX:AOTCacheOutput={tmp_path / 'classes.aot'}"]
    assert f"-XX:AOTCache={tmp_path / 'classes.aot'}" in archive.use_options(found, tmp_path)


def test_archives_of_other_versions_and_unused_archives_are_deleted(cache: Path) -> None:
    kept, replaced = make_archive(cache / "env1-new"), make_archive(cache / "env1-old")
    other, unused = make_archive(cache / "env2-new"), make_archive(cache / "env3-new")
    (cache / "lock").touch()
    long_ago = time.time() - 31 * 86400
    os.utime(unused, (long_ago, long_ago))
    archive.delete_unused(kept, "env1")
    assert sorted(cache.iterdir()) == sorted([kept, other, cache / "lock"])
    assert not replaced.exists()


def test_relative_cache_directory_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert archive.cache_directory() == tmp_path / ".cache" / "headrace" / "java"
