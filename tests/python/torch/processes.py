# SPDX-License-Identifier: Apache-2.0
"""Processes that do not import torch, which takes seconds: they are forked from one that has."""

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

PATIENCE_S = 120

#: For functions in processes of their own. What tests import is imported once.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "cistern.torch",
        "torch._dynamo",
        "accelerate",
        "transformers.trainer",
        "transformers.models.gpt2.modeling_gpt2",
    ]
)


@contextlib.contextmanager
def kept_handlers() -> Iterator[None]:
    """Give signals the handlers of before. An agent of torchrun, which runs here, sets its own."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    handlers = [signal.getsignal(number) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, handlers, strict=True):
            signal.signal(number, handler)


# The process that forks programs gets the text of each with four descriptors: its standard streams,
# and one to which the process that waits for the program writes its pid and its status. In the
# program itself the loop ends, so that what it raises, and its end, are those of any interpreter.
PARENT = """
import os, socket, sys
import cistern.torch, torch._dynamo

requests = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, fds, _, _ = socket.recv_fds(requests, 1 << 16, 4)
    if not request:
        sys.exit()
    if os.fork() == 0:
        requests.close()
        pid = os.fork()
        if pid == 0:
            break
        for fd in fds[:3]:
            os.close(fd)
        os.write(fds[3], b"%d\\n" % pid)
        os.write(fds[3], b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    for fd in fds:
        os.close(fd)
for number, fd in enumerate(fds):
    if number < 3:
        os.dup2(fd, number)
    os.close(fd)
name, text = request.decode().split("\\0")
sys.argv = ["-c", name]
exec(text)
"""


@functools.cache
def _parent() -> socket.socket:
    """Start the process that forks programs. Return a socket for requests to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", PARENT, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()

    def stop() -> None:
        ours.close()
        process.wait()

    atexit.register(stop)
    return ours


class Program:
    """The program ``text``, whose only argument is ``name``, in a process of its own."""

    def __init__(self, text: str, name: str) -> None:
        (stdin, self._stdin), *outputs = (os.pipe() for _ in range(4))
        theirs = [stdin, *(end for _, end in outputs)]
        socket.send_fds(_parent(), [f"{name}\0{text}".encode()], theirs)
        for fd in theirs:
            os.close(fd)
        self.stdout, self.stderr, self._status = (os.fdopen(end) for end, _ in outputs)
        self.pid = int(self._status.readline())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self, text: str = "") -> tuple[int, str]:
        """Give it ``text`` to read. Return its status and what it says on stderr."""
        watch = threading.Timer(PATIENCE_S, self.kill)
        watch.start()
        with self.stdout, self.stderr, self._status:
            os.write(self._stdin, text.encode())
            os.close(self._stdin)
            self.stdout.read()
            said, status = self.stderr.read(), int(self._status.readline())
        watch.cancel()
        return status, said
