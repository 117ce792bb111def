"""Tests of the limits of the pool of validation processes."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

from headrace.runtime import messages
from headrace.runtime.validator_pool import PROCESSES_PER_CLASS_MAX, ValidatorPool

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def validate(class_name: str) -> messages.Validate:
    return messages.Validate({"connector.class": class_name}, {}, None)


async def test_hung_validations_of_one_connector_class_do_not_delay_validations_of_other_classes() -> None:
    sent, hung = list[str](), asyncio.Event()

    async def spawn() -> Any:
        return MagicMock()

    async def send(_host: Any, message: Any) -> dict[str, Any]:
        sent.append(message.config["connector.class"])
        if sent[-1] == "Hung":
            await hung.wait()
        return {}

    pool = ValidatorPool(spawn, send)  # type: ignore[arg-type]
    requests = [asyncio.ensure_future(pool.request(validate("Hung"))) for _ in range(50)]
    assert await asyncio.wait_for(pool.request(validate("Sound")), 30) == {}
    assert sent.count("Hung") == PROCESSES_PER_CLASS_MAX
    hung.set()
    await asyncio.gather(*requests)
    pool.close()
