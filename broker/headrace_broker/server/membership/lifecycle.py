"""A broker's life as the controller sees it: registered, caught up and unfenced, heartbeating, shut down in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from headrace_broker.metadata.cluster import METADATA_VERSION, METADATA_VERSION_FEATURE, METADATA_VERSION_MIN
from headrace_broker.metadata.image import Endpoint, MetadataImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from headrace_broker.protocol.messages.broker_registration import Listener as RegisteredListener
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.network.controller_channel import ControllerChannel, NoControllerError
from headrace_broker.server.telling import Telling

logger = logging.getLogger(__name__)

_CATCH_UP_PAUSE_S = 0.01
_DUPLICATE_PAUSE_S = 0.1
_DUPLICATE_MARGIN_S = 2.0


class BrokerLifecycle:
    """Keeps the broker registered; lives on the event loop."""

    def __init__(
        self,
        node_id: int,
        channel: ControllerChannel,
        image: Callable[[], MetadataImage],
        *,
        cluster_id: str,
        incarnation_id: bytes,
        heartbeat_interval_ms: int,
        registration_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        self.node_id = node_id
        self.epoch = -1
        self.is_fenced = True
        self._channel = channel
        self._image = image
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._interval_ms = heartbeat_interval_ms
        self._registration_timeout_ms = registration_timeout_ms
        self._session_timeout_ms = session_timeout_ms
        self._wants_to_stop = False
        self._out = ""
        self._unheard = Telling()
        self._may_stop = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._request = BrokerRegistrationRequest()

    async def register(
        self,
        endpoints: Sequence[Endpoint],
        rack: str | None,
        log_dirs: Sequence[bytes],
        previous_epoch: int,
    ) -> None:
        """Register, then heartbeat until the broker is unfenced.  Raises StartError."""
        self._request = BrokerRegistrationRequest(
            broker_id=self.node_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                RegisteredListener(
                    name=item.name, host=item.host, port=item.port, security_protocol=item.security_protocol
                )
                for item in endpoints
            ],
            features=[
                Feature(
                    name=METADATA_VERSION_FEATURE,
                    min_supported_version=METADATA_VERSION_MIN,
                    max_supported_version=METADATA_VERSION,
                )
            ],
            rack=rack,
            log_dirs=list(log_dirs),
            previous_broker_epoch=previous_epoch,
        )
        await self._register()
        self._beating = asyncio.ensure_future(self._beat_forever())

    async def unfenced(self) -> None:
        """Wait until the controller lets the broker serve.  Raises StartError when it will not."""
        await self._unfenced.wait()
        if self._out:
            raise StartError(self._out)

    async def _register(self) -> None:
        """Register; an earlier process of this node may have to be taken for dead first, which takes its session."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._registration_timeout_ms / 1000
        duplicate_until: float | None = None
        while True:
            try:
                response = await self._channel.request(self._request, int((deadline - loop.time()) * 1000))
            except NoControllerError as error:
                raise StartError(
                    f"broker {self.node_id} could not be registered within {self._registration_timeout_ms} ms "
                    f"(initial.broker.registration.timeout.ms): {error.message}"
                ) from None
            code = ErrorCode.of(response.error_code)
            if code is ErrorCode.NONE:
                self.epoch = response.broker_epoch
                return
            if code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                raise StartError(self._refusal(code))
            if duplicate_until is None:
                logger.warning("%s. Waiting for its session to end", self._refusal(code))
                duplicate_until = min(deadline, loop.time() + self._session_timeout_ms / 1000 + _DUPLICATE_MARGIN_S)
            if loop.time() + _DUPLICATE_PAUSE_S > duplicate_until:
                raise StartError(self._refusal(code))
            await asyncio.sleep(_DUPLICATE_PAUSE_S)

    def _refusal(self, code: ErrorCode) -> str:
        if code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return (
                f"another broker with node.id={self.node_id} is alive in this cluster: give each node a number of its "
                "own, or stop the other one first"
            )
        if code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            return (
                f"the controllers of controller.quorum.voters belong to another cluster than {self._cluster_id}, which "
                "this node's directories are of: correct one of them"
            )
        return f"the controller refuses to register broker {self.node_id}: {code.name}, {code.message}"

    async def _beat_forever(self) -> None:
        while True:
            try:
                response = await self._channel.request(self._heartbeat(), self._interval_ms)
            except NoControllerError as error:
                if self._unheard.is_due(asyncio.get_running_loop().time()):
                    logger.warning("broker %d is not heard by a controller: %s", self.node_id, error.message)
                continue
            except Exception:  # a broker that says no more that it lives is fenced for good
                logger.exception("the heartbeat of broker %d", self.node_id)
                await self._pause(self._interval_ms / 1000)
                continue
            if self._unheard.is_over():
                logger.warning("broker %d is heard by a controller again", self.node_id)
            if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
                self._look_whether_out()
            else:
                self._heard(response)
            if self._may_stop.is_set():
                return
            await self._pause(self._interval_ms / 1000 if self._is_settled else _CATCH_UP_PAUSE_S)

    def _look_whether_out(self) -> None:
        """The controller knows another registration, or none.  When that is committed, this process stays out, as in
        Kafka: whoever unregistered it, or started another in its place, meant it."""
        image = self._image()
        known = image.brokers.get(self.node_id)
        if image.offset < self.epoch or (known is not None and known.epoch == self.epoch):
            return
        why = "was unregistered" if known is None else "was replaced by another process with the same node.id"
        self._out = (
            f"broker {self.node_id} {why}: it leads nothing and is in sync with nothing from now on; stop it, or "
            "restart it to have it registered again"
        )
        logger.error("%s", self._out)
        self.is_fenced = True
        self._unfenced.set()
        self._may_stop.set()

    @property
    def _is_settled(self) -> bool:
        return not self.is_fenced and not self._wants_to_stop

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._image().offset,
            want_fence=False,
            want_shut_down=self._wants_to_stop,
        )

    def _heard(self, response: BrokerHeartbeatResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            logger.warning("heartbeat of broker %d: %s", self.node_id, ErrorCode.of(response.error_code).name)
            return
        self.is_fenced = response.is_fenced
        if not self.is_fenced:
            self._unfenced.set()
        if response.should_shut_down:
            self._may_stop.set()

    async def _pause(self, seconds: float) -> None:
        self._beat_now.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._beat_now.wait()
        except TimeoutError:
            pass  # time for the next one

    async def shut_down(self, timeout_ms: int) -> bool:
        """Have the controller move the leaders away; False when it did not agree in time."""
        if self._beating is None:
            return False
        self._wants_to_stop = True
        self._beat_now.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._may_stop.wait()
        except TimeoutError:
            return False
        finally:
            self.close()
        return True

    def majority_gone(self) -> None:
        """There is nobody left to agree to a stop: it goes on without, which loses nothing."""
        if self._wants_to_stop:
            self._may_stop.set()

    def close(self) -> None:
        """No further heartbeats."""
        if self._beating is not None:
            self._beating.cancel()
