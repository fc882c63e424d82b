# SPDX-License-Identifier: Apache-2.0
"""The rate of a plain TCP connection between two nodes that send to each other at the same time.

One of them is called with "listen" and its address, the other one with "connect" and the address of
the first, both with the number of bytes to send. The one that connects prints the bytes per second
that the slower direction had.
"""

import socket
import sys
import threading
import time

PORT = 29532
PIECE = 1 << 20


def send(link: socket.socket, n_bytes: int) -> None:
    piece = bytes(PIECE)
    for _ in range(n_bytes // PIECE):
        link.sendall(piece)


def exchange(link: socket.socket, n_bytes: int) -> float:
    """Send and receive as many bytes; return the seconds until all have come and gone."""
    begin = time.perf_counter()
    sender = threading.Thread(target=send, args=(link, n_bytes))
    sender.start()
    buffer = bytearray(PIECE)
    left = n_bytes // PIECE * PIECE
    while left > 0:
        got = link.recv_into(buffer, min(left, PIECE))
        if got == 0:
            sys.exit("nodes_link: the other node has closed the connection")
        left -= got
    sender.join()
    return time.perf_counter() - begin


def dial(address: str) -> socket.socket:
    """Connect to a node that listens, or will listen within 30 seconds."""
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=30)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                sys.exit(f"nodes_link: nothing listens at {address} port {PORT}")
            time.sleep(0.05)


def main() -> None:
    _, role, address, text = sys.argv
    n_bytes = int(text)
    if role == "listen":
        with socket.create_server((address, PORT)) as server:
            link, _ = server.accept()
    else:
        link = dial(address)
    with link:
        link.settimeout(None)
        exchange(link, n_bytes // 8)  # Buffers have grown after that.
        seconds = exchange(link, n_bytes)
    if role == "connect":
        print(f"{n_bytes // PIECE * PIECE / seconds:.0f}")


if __name__ == "__main__":
    main()
