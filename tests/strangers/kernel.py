"""The TCP connections and descriptors of a process, as the kernel shows them."""

import os
from pathlib import Path
from typing import Final, NamedTuple

ESTABLISHED: Final = "01"


class TcpConnection(NamedTuple):
    """One established connection, by the ports of its two ends on this host."""

    own_port: int
    peer_port: int


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def connections_of(pid: int, peer_ports: frozenset[int]) -> frozenset[TcpConnection]:
    """Return the established connections of a process to these ports."""
    own = _sockets_of(pid)
    found = set()
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    for fields in map(str.split, lines):
        connection = TcpConnection(*(int(address.rpartition(":")[2], 16) for address in fields[1:3]))
        if fields[3] == ESTABLISHED and fields[9] in own and connection.peer_port in peer_ports:
            found.add(connection)
    return frozenset(found)


def _sockets_of(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes
