"""The few lines of a certificate that a person needs: whose, from whom, until when.

`ssl` decodes a certificate only once it has verified it, and the one to look at is the one that it
did not. So this reads the DER itself (X.690), as far as RFC 5280, 4.1 puts what is wanted.
"""

from __future__ import annotations

import ipaddress
from datetime import datetime, timezone
from typing import Iterator, NamedTuple

_NAMES = {b"\x55\x04\x03": "CN", b"\x55\x04\x0a": "O"}  # 2.5.4.3 and 2.5.4.10
_ALT_NAMES = b"\x55\x1d\x11"  # 2.5.29.17


class Certificate(NamedTuple):
    """`names`: what it is for, as DNS names and addresses."""

    subject: str
    issuer: str
    names: list[str]
    begins: datetime
    ends: datetime


def read(der: bytes) -> Certificate:
    """Raises ValueError for what is no certificate."""
    try:
        return _read(der)
    except (IndexError, StopIteration, RuntimeError, OverflowError, ValueError):
        raise ValueError("not a certificate") from None


def _read(der: bytes) -> Certificate:
    ((_, whole),) = _parts(der)
    parts = [part for part in _parts(next(_parts(whole))[1]) if part[0] != 0xA0]  # the version
    _serial, _algorithm, issuer, validity, subject = (body for _, body in parts[:5])
    begins, ends = (_time(tag, body) for tag, body in _parts(validity))
    names = [name for tag, body in parts[5:] if tag == 0xA3 for name in _alt_names(body)]
    return Certificate(_name(subject), _name(issuer), names, begins, ends)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and contents of each element; no tag of a certificate is longer than a byte."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            more = size & 0x7F
            size, at = int.from_bytes(data[at : at + more], "big"), at + more
        if at + size > len(data):
            raise IndexError
        yield tag, data[at : at + size]
        at += size


def _name(data: bytes) -> str:
    """The common name and the organisation, "CN=... O=..."."""
    found = []
    for _, group in _parts(data):
        for _, pair in _parts(group):
            (_, oid), (_, text) = _parts(pair)
            if oid in _NAMES:
                found.append(f"{_NAMES[oid]}={text.decode('utf-8', 'replace')}")
    return " ".join(sorted(found)) or "no name"


def _time(tag: int, data: bytes) -> datetime:
    # UTCTime has two digits for the year, 1950 to 2049; GeneralizedTime has four.
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
    when = datetime.strptime(data.decode("ascii"), form).replace(tzinfo=timezone.utc)
    return when.replace(year=when.year - 100) if tag == 0x17 and when.year >= 2050 else when


def _alt_names(data: bytes) -> Iterator[str]:
    ((_, extensions),) = _parts(data)
    for _, extension in _parts(extensions):
        (_, oid), *_, (_, value) = _parts(extension)
        if oid != _ALT_NAMES:
            continue
        for tag, name in _parts(next(_parts(value))[1]):
            if tag == 0x82:
                yield name.decode("ascii", "replace")
            elif tag == 0x87:
                yield str(ipaddress.ip_address(name))
