"""Basic authentication of REST requests, as in Kafka Connect's `BasicAuthSecurityRestExtension`.

The response to a request without valid credentials has status 401. As in Kafka Connect, it has no WWW-Authenticate
header, and its body is plain text.

Users and passwords come from properties files with lines `user=password`. `rest.basic.auth.users.file` names the file.
If this key is not set, the section KafkaConnect of a JAAS file names the files. The files are read once, at startup.
"""

from __future__ import annotations

import base64
import hmac
import logging
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from headrace.rest.responses import Endpoint
from headrace.runtime.rest_config import is_basic_auth_enabled
from headrace.runtime.worker_config import WorkerConfig

log = logging.getLogger(__name__)

USERS_FILE = "rest.basic.auth.users.file"
JAAS_SECTION = "KafkaConnect"
JAAS_DEFAULT_SECTION = "other"
"""The section that Java uses if the named one is missing."""
LOGIN_MODULE = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"


class Authenticator:
    """Compares the Authorization header of requests with the users and passwords of credentials files.

    `files` contains the passwords by user, one mapping for each credentials file. A request is accepted if any file
    contains its user and password. As in Kafka Connect, every request is accepted if any file is empty.
    """

    def __init__(self, files: Sequence[Mapping[str, str]]) -> None:
        self._files = files

    def accepts(self, header: str | None) -> bool:
        """Whether a request with this value of the Authorization header is accepted."""
        user, password = parse_header(header)
        return any(not users or _has_password(users, user, password) for users in self._files)

    def protect(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that responds with status 401 if the request is not accepted."""

        async def protected(request: Request) -> Response:
            if not self.accepts(request.headers.get("authorization")):
                log.debug("Request %s %s failed authentication", request.method, request.url.path)
                return unauthorized_response("application/json")
            return await endpoint(request)

        return protected


def _has_password(users: Mapping[str, str], user: str | None, password: str) -> bool:
    expected = None if user is None else users.get(user)
    # The comparison takes the same time wherever the passwords differ.
    return expected is not None and hmac.compare_digest(expected.encode(), password.encode())


def unauthorized_response(media_type: str) -> Response:
    """Return the response to a request without valid credentials, with `media_type` as its Content-Type."""
    return Response("User cannot access the resource.", 401, {"Content-Type": media_type})


def parse_header(header: str | None) -> tuple[str | None, str]:
    """Return the user and password in an Authorization header. Without basic credentials, the user is None."""
    scheme, space, encoded = (header or "").partition(" ")
    if not space or scheme.lower() != "basic":
        return None, ""
    try:
        decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:  # binascii.Error is a ValueError; b64decode also raises it for characters that are not ASCII
        return None, ""
    user, _, password = decoded.decode("utf-8", "replace").partition(":")
    return user or None, password


def create_authenticator(config: WorkerConfig, environment: Mapping[str, str]) -> Authenticator | None:
    """Return the authenticator of the worker, or None if the worker's REST API needs no credentials.

    `environment` contains the process's environment variables. They may contain Java options that name a JAAS file.
    Raises OSError, ValueError.
    """
    if not is_basic_auth_enabled(config["rest.extension.classes"]):
        return None
    return Authenticator([_read_users(path) for path in _credentials_files(config, environment)])


def _credentials_files(config: WorkerConfig, environment: Mapping[str, str]) -> list[str]:
    """Return the credentials files that the worker's configuration names, or else those that its JAAS file names.

    `environment` contains the environment variables with which the JAAS file is found. Raises OSError, ValueError.
    """
    if configured := config[USERS_FILE]:
        return [str(configured)]
    from headrace.rest import jaas  # a late import, because most workers need no JAAS file

    properties = jaas.system_properties(environment)
    path = jaas.configuration_file(properties)
    if path is None:
        raise ValueError(
            f"no users are configured: set {USERS_FILE} to a file with lines user=password, or set "
            f"KAFKA_OPTS=-D{jaas.CONFIGURATION_PROPERTY}=FILE to a JAAS file with the section {JAAS_SECTION}"
        )
    with open(path, encoding="utf-8") as file:
        sections = jaas.parse(file.read(), properties, path)
    modules = sections.get(JAAS_SECTION) or sections.get(JAAS_DEFAULT_SECTION)
    if modules is None:
        raise ValueError(
            f"{path}: the section {JAAS_SECTION} is missing; add the section with the login module {LOGIN_MODULE}"
        )
    for module in modules:
        if module.class_name != LOGIN_MODULE:
            raise ValueError(f"{path}: the login module {module.class_name} is not supported; use {LOGIN_MODULE}")
        if not module.options.get("file", "").strip():
            raise ValueError(f'{path}: the login module {LOGIN_MODULE} has no option `file`; add file="FILE"')
    return [module.options["file"] for module in modules]


def _read_users(path: str) -> Mapping[str, str]:
    """Return the passwords by user in a credentials file, a Java properties file in ISO 8859-1.

    Raises OSError, ValueError.
    """
    import javaproperties

    with open(path, "rb") as file:
        try:
            users = javaproperties.load(file)
        except ValueError as error:  # InvalidUEscapeError is a ValueError
            raise ValueError(f"{path}: {error}") from None
    if not users:
        log.warning("Credentials file %s is empty: the REST server accepts all requests without a password", path)
    return users
