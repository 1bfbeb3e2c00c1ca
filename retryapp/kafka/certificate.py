"""Why a broker's certificate is refused: the client library says the same of each reason."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

_TIMEOUT_S: Final = 2.0
_ADDRESS: Final = re.compile(r"ssl://(?P<host>[^\s/]+):(?P<port>\d+)/")


def refusal(reason: str, options: Mapping[str, str]) -> str | None:
    """Return why a certificate is refused, in words: expired, of another name, of an unknown authority.

    Asks the broker once more, with Python's TLS; `options` are the client's, `reason` its words, with the address.

    Returns:
        None: no address is named, or there is no answer, or nothing is wrong with the certificate.
    """
    found = _ADDRESS.search(reason)
    if found is None:
        return None
    host, port = found["host"].strip("[]"), int(found["port"])
    with suppress(OSError, ValueError):  # an authority's file that cannot be read, too
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem"))
        context.check_hostname = options.get("ssl.endpoint.identification.algorithm", "https") == "https"
        try:
            with socket.create_connection((host, port), _TIMEOUT_S) as raw:
                context.wrap_socket(raw, server_hostname=host).close()
        except ssl.SSLCertVerificationError as error:
            return f"certificate verify failed for {host}:{port}: {error.verify_message}"
    return None
