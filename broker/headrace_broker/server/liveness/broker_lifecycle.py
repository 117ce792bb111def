"""The broker's registration with the controller: registering, heartbeats, unfencing, controlled shutdown."""

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
from headrace_broker.server.log_throttle import LogThrottle
from headrace_broker.server.network.controller_channel import ControllerChannel, NoControllerError

logger = logging.getLogger(__name__)

_CATCH_UP_PAUSE_S = 0.01
_DUPLICATE_PAUSE_S = 0.1
_DUPLICATE_MARGIN_S = 2.0


class BrokerLifecycle:
    """Registers the broker and sends its heartbeats. All methods run on the event loop."""

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
        self._wants_shutdown = False
        self._deregistered_reason = ""
        self._heartbeat_failure_throttle = LogThrottle()
        self._shutdown_allowed = asyncio.Event()
        self._heartbeat_now = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._registration_request = BrokerRegistrationRequest()

    async def register(
        self,
        endpoints: Sequence[Endpoint],
        rack: str | None,
        log_dirs: Sequence[bytes],
        previous_epoch: int,
    ) -> None:
        """Register, and start sending heartbeats. Raises StartError.

        `previous_epoch` is the broker epoch of the last shutdown if the shutdown was clean, else -1.
        """
        self._registration_request = BrokerRegistrationRequest(
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
        self._heartbeat_task = asyncio.ensure_future(self._send_heartbeats())

    async def wait_until_unfenced(self) -> None:
        """Wait until the controller unfences the broker. Raises StartError if the broker is unregistered first."""
        await self._unfenced.wait()
        if self._deregistered_reason:
            raise StartError(self._deregistered_reason)

    async def _register(self) -> None:
        """Register the broker. Raises StartError.

        If another process with this broker id has a session, for example an earlier process of this node, retry until
        that session has expired.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._registration_timeout_ms / 1000
        duplicate_until: float | None = None
        while True:
            try:
                response = await self._channel.request(self._registration_request, int((deadline - loop.time()) * 1000))
            except NoControllerError as error:
                raise StartError(
                    f"broker {self.node_id} could not register within {self._registration_timeout_ms} ms "
                    f"(initial.broker.registration.timeout.ms): {error.message}"
                ) from None
            code = ErrorCode.from_code(response.error_code)
            if code is ErrorCode.NONE:
                self.epoch = response.broker_epoch
                return
            if code is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                raise StartError(self._registration_error(code))
            if duplicate_until is None:
                logger.warning(
                    "Broker %d: another broker has a session with this id; retrying the registration until that "
                    "session expires: %s",
                    self.node_id,
                    self._registration_error(code),
                )
                duplicate_until = min(deadline, loop.time() + self._session_timeout_ms / 1000 + _DUPLICATE_MARGIN_S)
            if loop.time() + _DUPLICATE_PAUSE_S > duplicate_until:
                raise StartError(self._registration_error(code))
            await asyncio.sleep(_DUPLICATE_PAUSE_S)

    def _registration_error(self, code: ErrorCode) -> str:
        if code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return (
                f"another broker with node.id={self.node_id} is running in this cluster: give each node a unique "
                "node.id, or stop the other broker first"
            )
        if code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            return (
                f"the controllers in controller.quorum.voters do not belong to cluster {self._cluster_id}, the cluster "
                "of this node's directories: correct controller.quorum.voters or log.dirs"
            )
        return f"the controller rejected the registration of broker {self.node_id}: {code.name}, {code.message}"

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                response = await self._channel.request(self._heartbeat_request(), self._interval_ms)
            except NoControllerError as error:
                if self._heartbeat_failure_throttle.should_log(asyncio.get_running_loop().time()):
                    logger.warning(
                        "Broker %d: heartbeats do not reach the controller, retrying: %s", self.node_id, error.message
                    )
                continue
            except Exception:  # if the task ended, the broker would send no more heartbeats and stay fenced
                logger.exception("Broker %d: heartbeat failed", self.node_id)
                await self._sleep_until_next_heartbeat(self._interval_ms / 1000)
                continue
            if self._heartbeat_failure_throttle.reset():
                logger.warning("Broker %d: heartbeats reach the controller again", self.node_id)
            if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
                self._check_deregistered()
            else:
                self._handle_heartbeat_response(response)
            if self._shutdown_allowed.is_set():
                return
            await self._sleep_until_next_heartbeat(
                self._interval_ms / 1000 if self._is_unfenced_and_running else _CATCH_UP_PAUSE_S
            )

    def _check_deregistered(self) -> None:
        """Handle the error STALE_BROKER_EPOCH: the controller does not have this process's registration any more.

        Do nothing until this node's image shows that the registration was removed or replaced. As in Kafka, this
        process then does not register again, because an operator unregistered the broker or started another process.
        """
        image = self._image()
        known = image.brokers.get(self.node_id)
        if image.offset < self.epoch or (known is not None and known.epoch == self.epoch):
            return
        reason = "was unregistered" if known is None else "was replaced by another process with the same node.id"
        self._deregistered_reason = (
            f"broker {self.node_id} {reason}: it is no longer the leader or an in-sync replica of any partition; "
            "stop it, or restart it to register again"
        )
        logger.error("Broker %d: the controller rejects its heartbeats: %s", self.node_id, self._deregistered_reason)
        self.is_fenced = True
        self._unfenced.set()
        self._shutdown_allowed.set()

    @property
    def _is_unfenced_and_running(self) -> bool:
        return not self.is_fenced and not self._wants_shutdown

    def _heartbeat_request(self) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._image().offset,
            want_fence=False,
            want_shut_down=self._wants_shutdown,
        )

    def _handle_heartbeat_response(self, response: BrokerHeartbeatResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            logger.warning(
                "Broker %d: heartbeat failed: %s", self.node_id, ErrorCode.from_code(response.error_code).name
            )
            return
        self.is_fenced = response.is_fenced
        if not self.is_fenced:
            self._unfenced.set()
        if response.should_shut_down:
            self._shutdown_allowed.set()

    async def _sleep_until_next_heartbeat(self, seconds: float) -> None:
        self._heartbeat_now.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._heartbeat_now.wait()
        except TimeoutError:
            pass  # it is time for the next heartbeat

    async def controlled_shutdown(self, timeout_ms: int) -> bool:
        """Ask the controller to move leadership to other brokers, and wait until the controller confirms.

        Return False if the controller does not confirm within `timeout_ms`. If a majority of the quorum's voters goes
        down during the wait, return True immediately.
        """
        if self._heartbeat_task is None:
            return False
        self._wants_shutdown = True
        self._heartbeat_now.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._shutdown_allowed.wait()
        except TimeoutError:
            return False
        finally:
            self.close()
        return True

    def on_majority_lost(self) -> None:
        """End the wait in `controlled_shutdown`.

        Without a majority of the quorum's voters, no controller can confirm the shutdown.
        """
        if self._wants_shutdown:
            self._shutdown_allowed.set()

    def close(self) -> None:
        """Stop sending heartbeats."""
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
