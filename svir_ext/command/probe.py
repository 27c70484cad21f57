"""What `svir check` tries below HTTP: addresses, ports, certificates. None of it sends a key."""

from __future__ import annotations

import os
import re
import socket
import time
from typing import Any, Iterator, Mapping, NamedTuple

import svir

from . import certificate
from .options import USUAL_PORTS

NEAR = 0.3  # seconds to wait for a port of this machine


class Place(NamedTuple):
    """The parts of a base URL."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme] == self.port
        return f"{self.scheme}://{host}" + ("" if usual else f":{self.port}")

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, as `svir.Client` sees it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def split(base_url: str) -> Place:
    """A base URL that `svir.Client` has accepted."""
    match = re.match(r"(https?)://\[?([^/\]]+?)\]?(?::(\d+))?(/.*|)\Z", base_url)
    if match is None:
        raise svir.ConfigError("the base URL cannot be taken apart")
    scheme, host, port, path = match.groups()
    return Place(scheme, host, int(port or (443 if scheme == "https" else 80)), path)


# -- Addresses ------------------------------------------------------------------------------------


class Tried(NamedTuple):
    """An address of a host; `failed` is empty when it answered, after `seconds`."""

    address: str
    failed: str
    seconds: float


def addresses(host: str, port: int, timeout: float | None) -> list[Tried]:
    """Connect to each address of the host. Raises `svir.ConnectError` when it has none."""
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise svir.ConnectError(f"the name {host} has no address: {reason}") from None
    seen = {info[4][0]: info for info in found}
    return [_try(info, timeout) for info in seen.values()]


def unix(path: str, timeout: float | None) -> Tried:
    """Connect to a UNIX socket."""
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise svir.ConfigError("this system has no UNIX sockets")
    return _try((family, socket.SOCK_STREAM, 0, "", path), timeout)


def _try(info: Any, timeout: float | None) -> Tried:
    family, kind, protocol, _, place = info
    shown = place if isinstance(place, str) else str(place[0])
    start = time.monotonic()
    try:
        with socket.socket(family, kind, protocol) as sock:
            sock.settimeout(timeout)
            sock.connect(place)
    except socket.timeout:
        return Tried(shown, "no answer", time.monotonic() - start)
    except OSError as error:
        return Tried(shown, error.strerror or str(error), time.monotonic() - start)
    return Tried(shown, "", time.monotonic() - start)


def other_ports(place: Place) -> Iterator[str]:
    """Base URLs on the usual ports of this machine that list models; none of another machine."""
    for port in USUAL_PORTS if place.is_here else ():
        url = place._replace(scheme="http", port=port, path="").origin
        if port != place.port and lists_models(url, {}, NEAR) is not None:
            yield url


def lists_models(url: str, options: Mapping[str, Any], timeout: float) -> int | None:
    """How many models the server at this exact base URL lists; None when it lists none."""
    given = {**options, "connect_timeout": timeout, "idle_timeout": 5.0, "total_timeout": 5.0}
    try:
        with svir.Client(url, **given) as client:
            return len(client.list_models())
    except svir.Error:
        return None


# -- TLS ------------------------------------------------------------------------------------------


class Tls(NamedTuple):
    """What a handshake showed: `failed` when there was none."""

    version: str = ""
    certificate: certificate.Certificate | None = None
    failed: str = ""


def tls(place: Place, backend: Mapping[str, Any], timeout: float | None) -> Tls:
    """Shake hands without asking whose certificate it is, look at it, and send nothing."""
    import ssl

    seen: list[Tls] = []

    class Socket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            der = self.getpeercert(True)
            seen.append(Tls(self.version() or "", _readable(der)))
            raise OSError("looked at")  # svir closes the socket

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.sslsocket_class = Socket
    way = {name: value for name, value in backend.items() if name != "cafile"}
    url = place._replace(scheme="https").origin
    if place.port == 80:
        url = f"{url}:80"
    try:
        svir.HttpBackend(ssl_context=context, **way).send(
            svir.HttpRequest("GET", url, {}, connect_timeout=timeout, idle_timeout=timeout)
        ).close()
    except svir.Error as error:
        return seen[0] if seen else Tls(failed=str(error))
    return Tls(failed="no TLS handshake")


def _readable(der: bytes | None) -> certificate.Certificate | None:
    try:
        return None if der is None else certificate.read(der)
    except ValueError:
        return None


def trusted(cafile: str | None) -> list[str]:
    """Which CA certificates svir trusts (Q10)."""
    import ssl

    paths, told = ssl.get_default_verify_paths(), []
    for used, usual, name in (
        (paths.cafile, paths.openssl_cafile, paths.openssl_cafile_env),
        (paths.capath, paths.openssl_capath, paths.openssl_capath_env),
    ):
        told.append(f"{used or usual}{f' (of {name})' if os.environ.get(name) else ''}")
    try:
        import certifi

        told.append(f"{certifi.where()} (of certifi)")
    except ImportError:
        pass
    return [*told, cafile] if cafile else told
