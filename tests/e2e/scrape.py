# SPDX-License-Identifier: Apache-2.0
"""A scraper for metrics.sh: reads the text of metrics as strictly as it is written, scrapes, and misbehaves.

    scrape.py parse < TEXT          print each sample as NAME{LABELS} VALUE, with sorted labels
    scrape.py get ADDRESS [PATH]    print the body of an answer with status 200
    scrape.py attack ADDRESS        be every bad scraper, each followed by a good one
    scrape.py mute PATH [SOCKET]    be a daemon at PATH that says nothing, or greets as the one at SOCKET does, and then says nothing
    scrape.py beside ADDRESS        scrape while the daemon is silent, with a connection before that asks after it
    scrape.py pass ADDRESS COMMAND  run COMMAND with a listening socket, as systemd does

ADDRESS is HOST:PORT or the path of a Unix socket.
"""

import os
import re
import socket
import sys

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (NaN|[+-]Inf|-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?)")
WAIT = 30.0  # seconds


def parse(text):
    """Return {(name, labels): value} of the exposition format 0.0.4. AssertionError: it is not that."""
    samples, types, closed, current = {}, {}, set(), None
    assert text.endswith("\n"), "the last line has no end"
    for line in text[:-1].split("\n"):
        comment = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line)
        if comment:
            kind, name, rest = comment.groups()
            if name != current:
                assert name not in closed, f"{name} is declared in two places"
                assert kind == "HELP", f"{name} has no help before its type"
                closed.add(name)
                current = name
            if kind == "TYPE":
                assert rest in ("counter", "gauge") and name not in types, line
                types[name] = rest
                assert (rest == "counter") == name.endswith("_total"), line
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, f"not a sample: {line!r}"
        name, labels, value = sample.group(1), sample.group(2) or "", float(sample.groups()[-1])
        assert name == current and name in types, f"a sample outside its metric: {line}"
        key = name, tuple(sorted(re.findall(LABEL, labels)))
        assert len({label for label, _ in key[1]}) == len(key[1]), f"a label twice: {line}"
        assert key not in samples, f"twice: {line}"
        assert types[name] == "gauge" or value >= 0, f"a negative counter: {line}"
        samples[key] = value
    return samples


def place(address):
    """Return the family and the address as Python wants it."""
    host, _, port = address.rpartition(":")
    if address.startswith("/"):
        return socket.AF_UNIX, address
    return socket.AF_INET6 if host.startswith("[") else socket.AF_INET, (host.strip("[]"), int(port))


def connect(address):
    family, where = place(address)
    peer = socket.socket(family, socket.SOCK_STREAM)
    peer.settimeout(WAIT)
    peer.connect(where)
    return peer


def run_with_socket(address, *command):
    family, where = place(address)
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(where)
    listener.listen()
    if listener.fileno() != 3:
        os.dup2(listener.fileno(), 3)
    os.set_inheritable(3, True)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
    os.execv(command[0], command)


def mute(path, upstream=None):
    listener, daemon = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    listener.bind(path)
    listener.listen()
    if upstream is None:
        while True:
            client, _ = listener.accept()
            while client.recv(1 << 20):
                pass
    daemon.connect(upstream)
    client, _ = listener.accept()
    daemon.send(client.recv(1 << 20))
    client.send(daemon.recv(1 << 20))
    while client.recv(1 << 20):
        pass


def read(peer):
    """Return the status and the body of the answer."""
    answer = b""
    while piece := peer.recv(65536):
        answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    assert int(fields["content-length"]) == len(body) and fields["connection"] == "close", lines
    return int(lines[0].split(" ")[1]), body, fields


def ask(address, request):
    peer = connect(address)
    peer.sendall(request)
    return read(peer)


def get(address, path="/metrics"):
    status, body, fields = ask(address, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert status == 200, status
    assert fields["content-type"] == "text/plain; version=0.0.4; charset=utf-8", fields
    return body.decode()


def is_closed(peer):
    """Wait until the other side has closed the connection."""
    try:
        while peer.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def good(address):
    assert parse(get(address))["cistern_up", ()] == 1


def idle(address):
    """Connections that say nothing: if each had its time before the next ones, the good one would wait for longer than WAIT."""
    peers = [connect(address) for _ in range(200)]
    good(address)
    assert all(is_closed(peer) for peer in peers[:180])


def slow(address):
    """A request that comes byte by byte, and does not end. Returns its connection."""
    peer = connect(address)
    for byte in b"GET /met":
        try:
            peer.sendall(bytes([byte]))
        except ConnectionError:
            pass  # It was closed at the end of its time.
        good(address)
    return peer


def huge(address):
    """A request without an end is answered as soon as it is too long, although more is sent."""
    peer = connect(address)
    try:
        for _ in range(200):
            peer.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x: " + b"y" * 8000 + b"\r\n")
    except ConnectionError:
        pass  # It was closed at the end of its time, or for a newer one.
    peer = connect(address)
    peer.sendall(b"x" * 8192)
    assert read(peer)[0] == 431


def half(address):
    """The sending half is closed after the request, and before its end."""
    peer = connect(address)
    peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    peer.shutdown(socket.SHUT_WR)
    assert read(peer)[0] == 200
    peer = connect(address)
    peer.sendall(b"GET /metr")
    peer.shutdown(socket.SHUT_WR)
    assert is_closed(peer)


def deaf(address):
    """Answers that nobody reads, and answers to peers that have gone."""
    peers = [connect(address) for _ in range(40)]
    for peer in peers:
        try:
            peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        except ConnectionError:
            pass  # Its place was taken.
    good(address)
    for _ in range(40):
        peer = connect(address)
        peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        peer.close()


def garbage(address):
    for request, status in ((b"\0" * 100 + b"\r\n\r\n", 400), (b"\r\n\r\n", 400), (b"POST /metrics HTTP/1.1\r\n\r\nx", 405),
                            (b"GET /../metrics HTTP/1.1\r\n\r\n", 404), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400)):
        assert ask(address, request)[0] == status, request
    peer = connect(address)
    peer.sendall(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    answer = b""
    while piece := peer.recv(65536):
        answer += piece
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\n"), answer


def beside(address):
    """The time in which the exporter waits for its daemon is not that of a connection that it has accepted."""
    early = connect(address)
    assert parse(get(address))["cistern_up", ()] == 0  # `early` was accepted before.
    early.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert read(early)[0] == 200


def attack(address):
    for kind in (idle, huge, half, deaf, garbage):
        kind(address)
        good(address)
    assert is_closed(slow(address))  # at the end of its time
    good(address)


def main():
    command, *rest = sys.argv[1:]
    if command == "parse":
        for (name, labels), value in parse(sys.stdin.read()).items():
            words = ",".join(f'{label}="{text}"' for label, text in labels)
            print(f"{name}{{{words}}} {value!r}")
    elif command == "mute":
        mute(*rest)
    elif command == "beside":
        beside(*rest)
    elif command == "pass":
        run_with_socket(*rest)
    elif command == "get":
        sys.stdout.write(get(*rest))
    else:
        attack(*rest)


main()
