"""The drill's own machinery."""

import argparse
import socket

import pytest

from tests.support.kube import drill_process

commands: list[list[str]] = []


class Child:
    """Stands for the process that is not started."""

    def __init__(self, command: list[str], **more: object) -> None:
        commands.append(command)

    def kill(self) -> None:
        """It never ran."""


def test_drills_can_run_side_by_side(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process gets a port that nobody listens on, also if another drill has the port before."""
    monkeypatch.setattr(drill_process.subprocess, "Popen", Child)
    args = argparse.Namespace(logs=tmp_path, kubeconfig="none", patience_s=5.0, policy="greedy-wait")
    held, ports = [], []
    try:
        for name in "abc":
            process = drill_process.Process(args, name)
            command = commands[-1]
            ports.append(int(command[command.index("--metrics-port") + 1]))
            held.append(socket.create_server(("127.0.0.1", ports[-1])))
            assert process.port == ports[-1]
    finally:
        for one in held:
            one.close()
    assert len(set(ports)) == 3
