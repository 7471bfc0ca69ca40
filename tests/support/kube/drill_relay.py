"""A relay in front of the API server."""

import contextlib
import re
import socket
import threading
from pathlib import Path


class Relay:
    """A TCP relay in front of the API server whose connections can be cut."""

    def __init__(self, kubeconfig: str, out: Path) -> None:
        text = Path(kubeconfig).read_text()
        match = re.search(r"https://127.0.0.1:([0-9]+)", text)
        self.target = int(match[1])
        self.server = socket.create_server(("127.0.0.1", 0))
        self.open: list[socket.socket] = []
        out.write_text(text.replace(match[0], f"https://127.0.0.1:{self.server.getsockname()[1]}"))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            near, _ = self.server.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self.open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    def pump(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for end in self.open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.clear()
