"""`headrace validate` names the file in each line of its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.validate import validate_files
from support.ports import free_port

pytestmark = pytest.mark.integration


def test_unreachable_database_is_reported_as_warning_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "j.properties"
    file.write_text(
        "name=j\nconnector.class=JdbcSource\nmode=bulk\ntable.whitelist=orders\ntopic.prefix=t-\n"
        f"connection.url=jdbc:postgresql://127.0.0.1:{free_port()}/shop\n"
    )
    assert validate_files([file], None)
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{file}: warning: Database is not available (")
    assert output.out == f"{file}: j is valid\n"
