# SPDX-License-Identifier: Apache-2.0
"""Strangers at ports of a node: strangers.py SEED N PORT... For each port, N connections of each of these kinds:

- nothing is said, and the connection stays open until all others have come;
- a byte at a time, as if the rest were to follow;
- garbage of random lengths;
- what another connection to the same port was sent before: the bytes of a TLS hello, or a request of the job's engines with a
  random token, again and again;
- a whole TLS handshake with a certificate that nobody knows, if the port speaks TLS and openssl can make one.

Ends with status 1 if a stranger is sent more than a TLS handshake or a refusal has: 64 KiB in all.
"""
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile

HELD = 100  # Connections that are open at a time.


def connect(port):
    try:
        sock = socket.create_connection(("127.0.0.1", port), timeout=5)
    except OSError:
        return None
    sock.settimeout(0.001)
    return sock


def received(sock):
    n = 0
    try:
        while True:
            got = len(sock.recv(4096))
            n += got
            if got == 0:
                return n
    except OSError:
        return n


def client_hello():
    """The first bytes that a TLS client sends."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    side = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def come(port, n, what):
    """@n connections that send what(i); returns how many bytes the most talkative answer has."""
    most, held = 0, []
    for i in range(n):
        sock = connect(port)
        if sock is None:
            continue
        try:
            for piece in what(i):
                sock.sendall(piece)
        except OSError:
            pass
        held.append(sock)
        if len(held) >= HELD:
            most = max(most, received(held[0]))
            held.pop(0).close()
    for sock in held:
        most = max(most, received(sock))
        sock.close()
    return most


def with_certificate(port, n, directory):
    """TLS handshakes as somebody whose certificate is his own."""
    key, certificate = os.path.join(directory, "key"), os.path.join(directory, "crt")
    try:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=b",
                        "-days", "1", "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(certificate, key)
    for _ in range(n):
        sock = connect(port)
        if sock is None:
            continue
        sock.settimeout(5)
        try:
            with context.wrap_socket(sock) as side:
                side.sendall(b"CSPN" + bytes(60))
                if side.recv(4096):
                    sys.exit(f"port {port} answers somebody whose certificate it does not know")
        except OSError:
            pass
        finally:
            sock.close()


def main():
    seed, n = int(sys.argv[1]), int(sys.argv[2])
    chance = random.Random(seed)
    hello = client_hello()
    request = b"CSPN" + chance.randbytes(60)
    kinds = {
        "nothing": lambda i: [],
        "slow": lambda i: [hello[:1 + i % 7]],
        "garbage": lambda i: [chance.randbytes(chance.randrange(1, 9000))],
        "a hello, again": lambda i: [hello, hello],
        "a request, again": lambda i: [request] * (1 + i % 3),
    }
    with tempfile.TemporaryDirectory() as directory:
        for port in map(int, sys.argv[3:]):
            for kind, what in kinds.items():
                most = come(port, n, what)
                if most > 65536:
                    sys.exit(f"port {port}: '{kind}' was sent {most} bytes")
            with_certificate(port, 20, directory)


main()
