"""The metrics and health server against slow, silent, rude and many clients."""

import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from jaxsched.errors import UserError
from jaxsched.kube.cluster import monitoring
from jaxsched.kube.cluster.monitoring import MOST_CLIENTS, HealthServer, Metrics, serve


@pytest.fixture
def trouble():
    return {"live": "", "ready": ""}


@pytest.fixture
def server(trouble, monkeypatch):
    monkeypatch.setattr(monitoring, "LONGEST_S", 1.5)
    one = serve("127.0.0.1", 0, Metrics(), lambda: trouble["live"], lambda: trouble["ready"])
    yield one
    one.shutdown()
    one.server_close()


@pytest.fixture
def connect(server):
    """Opens a connection and sends the bytes; all are closed with the test."""
    made: list[socket.socket] = []

    def begin(sent: bytes = b"") -> socket.socket:
        made.append(socket.create_connection(("127.0.0.1", server.server_port), timeout=10))
        made[-1].sendall(sent)
        return made[-1]

    yield begin
    for one in made:
        one.close()


def get(server: HealthServer, page: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{page}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def clients() -> int:
    return sum(thread.name == "metrics client" for thread in threading.enumerate())


def ended(connection: socket.socket) -> bool:
    """The server has closed it."""
    connection.settimeout(10)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_pages(server, trouble) -> None:
    assert get(server, "/livez") == get(server, "/healthz") == get(server, "/readyz?verbose") == (200, b"ok\n")
    assert b"jaxsched_leader" in get(server, "/metrics")[1]
    assert get(server, "/etc/passwd")[0] == 404
    trouble["ready"] = "compiling"
    assert get(server, "/readyz") == (503, b"compiling\n") and get(server, "/livez")[0] == 200


def test_silent_clients_in_all_places_do_not_keep_a_probe_out(server, connect) -> None:
    silent = [connect() for _ in range(10 * MOST_CLIENTS)]
    for _ in range(5):
        began = time.monotonic()
        assert get(server, "/livez") == (200, b"ok\n")
        assert time.monotonic() - began < 5.0
        assert clients() <= MOST_CLIENTS
    assert all(map(ended, silent))


def test_a_client_that_sends_a_letter_at_a_time_is_cut(server, connect) -> None:
    slow = connect(b"GET /livez HTTP/1.1\r\n")
    began = time.monotonic()
    with pytest.raises(ConnectionError):
        while time.monotonic() - began < 20:
            slow.sendall(b"X")
            time.sleep(0.1)
    assert 1.0 < time.monotonic() - began < 10


def test_a_client_that_takes_nothing_gives_its_place_back(server, connect) -> None:
    for _ in range(2 * MOST_CLIENTS):
        connect(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert get(server, "/readyz")[0] == 200
    end = time.monotonic() + 10
    while clients():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01" + bytes(range(256)),
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"\r\n",
    ],
    ids=["tls", "long", "headers", "post", "version", "nothing"],
)
def test_what_is_no_request_is_answered_or_cut(server, connect, sent: bytes, capfd) -> None:
    assert ended(connect(sent))
    assert get(server, "/livez") == (200, b"ok\n")
    assert "Traceback" not in capfd.readouterr().err


def test_many_clients_at_once(server) -> None:
    answers: list[int] = []

    def ask() -> None:
        for _ in range(10):
            answers.append(get(server, "/metrics")[0])

    threads = [threading.Thread(target=ask) for _ in range(MOST_CLIENTS // 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [200] * (10 * len(threads))


@pytest.mark.parametrize(("address", "port"), [("127.0.0.1", 70000), ("no address", 0), ("256.0.0.1", 0)])
def test_an_address_that_cannot_be_used_is_refused(address: str, port: int) -> None:
    with pytest.raises(UserError, match="--metrics-address"):
        serve(address, port, Metrics(), str, str)


def test_only_the_address_that_was_asked_for_answers(server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", server.server_port), timeout=2):
        pass
