"""Gives every Service of a chart that runs here its loopback address: what a cluster's DNS does for pods.

Python imports this file when it starts, where its folder is on the path. Names that are no Service are not known, so
that nothing is asked of another machine.
"""

import ipaddress
import os
import socket

ADDRESSES = dict(pair.split("=") for pair in os.environ["DASK_ODM_TEST_HOSTS"].split(",") if pair)
_ask = socket.getaddrinfo


def _known(host):
    name = host.decode() if isinstance(host, bytes) else host
    if name in ADDRESSES:
        return ADDRESSES[name]
    if name and name not in ("localhost", socket.gethostname()):
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, f"no Service is called {name}") from None
    return host


def getaddrinfo(host, *args, **options):
    return _ask(_known(host), *args, **options)


socket.getaddrinfo = getaddrinfo
