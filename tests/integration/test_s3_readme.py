"""Tests that the example in the README of the S3 connectors works as written, except that it uses free ports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import s3
from support.ports import free_ports
from support.topics import end_offset, read_topic
from support.worker import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
README = ROOT / "connectors" / "headrace_connectors" / "s3" / "README.md"


@pytest.mark.slow
def test_example_of_the_s3_readme_copies_rows_to_objects_and_back(tmp_path: Path) -> None:
    block = re.search(r"^```\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    store, create, fill, worker, show = block[1].splitlines()
    store_port, rest_port = free_ports(2)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for file in (tmp_path / "configs").glob("*.properties"):
        file.write_text(file.read_text().replace("localhost:9000", f"localhost:{store_port}"))
    assert "9000" in store
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def shell(command: str) -> str:
        command = command.replace("localhost:9000", f"localhost:{store_port}")
        return subprocess.check_output(["bash", "-c", command], cwd=tmp_path, env=path, text=True, timeout=120)

    with s3.running(store_port) as server:
        server.client().delete_bucket(Bucket=s3.BUCKET)  # the example creates it
        shell(create)
        shell(fill)
        words = worker.partition("#")[0].split()
        words += ["--override", f"listeners=http://127.0.0.1:{rest_port}"]
        log = tmp_path / "worker.log"
        with log.open("wb") as output:
            process = subprocess.Popen(words, cwd=tmp_path, env=path, stdout=output, stderr=output)
        try:
            wait_for(lambda: len(server.objects()) == 1, "the object exists", 60, log.read_text)
            assert shell(show).splitlines() == ['{"id":1,"item":"tea"}', '{"id":2,"item":"cups"}']
            address = log.read_text().rpartition("started an embedded broker at ")[2].partition(" ")[0]
            topic = "restored-shop-orders"
            wait_for(lambda: end_offset(address, topic) == 2, "both records are restored", 60, log.read_text)
            assert [b'"tea"' in (each.value() or b"") for each in read_topic(address, topic)] == [True, False]
        finally:
            process.terminate()
            process.wait(30)
