"""/metrics is for those whom the API server lets read it; the same on the fake and on a real one."""

import concurrent.futures
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from jaxsched.errors import UserError
from jaxsched.kube.cluster.monitoring import Metrics, MetricsAccess, read_certificate, serve
from tests.support.kube.calls import eventually

ACCOUNTS, RBAC = "/api/v1/namespaces/default/serviceaccounts", "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def server(world):
    one = serve("127.0.0.1", 0, Metrics(), lambda: "", lambda: "", MetricsAccess(world.proxy.api).check)
    yield one
    one.shutdown()
    one.server_close()


def get(server, page: str = "/metrics", token: str = "", kind: str = "Bearer") -> int:
    headers = {"Authorization": f"{kind} {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{page}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert page != "/metrics" or b"jaxsched_leader" in answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        assert b"jaxsched_" not in error.read()
        return error.code


def account(world, reads: bool) -> str:
    """A token of a new service account, which may read /metrics or not."""
    name = world.name("sa")
    world.make(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    if reads:
        meta, subject = {"name": name}, {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1"}
        world.make(f"{RBAC}/clusterroles", kind | {"kind": "ClusterRole", "metadata": meta, "rules": rules})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        bound = kind | {"kind": "ClusterRoleBinding", "metadata": meta, "roleRef": ref, "subjects": [subject]}
        world.make(f"{RBAC}/clusterrolebindings", bound)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return world.api.request("POST", f"{ACCOUNTS}/{name}/token", body=asked).body["status"]["token"]


def test_only_those_who_may_read_them_get_metrics(world, server) -> None:
    assert get(server) == 401
    assert get(server, token="nonsense") == 401
    assert get(server, token="dXNlcjpwYXNz", kind="Basic") == 401
    assert get(server, token="x" * 9000) == 401
    assert get(server, token=account(world, reads=False)) == 403
    token = account(world, reads=True)
    eventually(lambda: MetricsAccess(world.api).check(f"Bearer {token}")[0] == 200)  # RBAC takes the server a moment
    assert get(server, token=token) == 200
    assert [get(server, page) for page in ("/livez", "/readyz", "/healthz")] == [200] * 3


def test_an_answer_counts_for_a_while(world, server, monkeypatch) -> None:
    token = account(world, reads=True)
    eventually(lambda: MetricsAccess(world.api).check(f"Bearer {token}")[0] == 200)
    assert [get(server, token=token) for _ in range(5)] == [200] * 5
    assert world.proxy.count("POST", "tokenreviews") == world.proxy.count("POST", "subjectaccessreviews") == 1
    world.api.request("DELETE", world.made[-3])  # the account: its token is not good any more
    monkeypatch.setattr("jaxsched.kube.cluster.monitoring.KEPT_S", 0.0)
    eventually(lambda: get(server, token=token) == 401)


def test_nobody_gets_metrics_while_the_server_is_away(world, server) -> None:
    token = account(world, reads=True)
    eventually(lambda: MetricsAccess(world.api).check(f"Bearer {token}")[0] == 200)
    fault = world.proxy.inject("POST", "reviews", status=500, times=2)
    assert get(server, token=token) == 503 and fault.hits == 1
    world.proxy.inject("POST", "subjectaccessreviews", lose_answer=True)
    fault.times = 1
    assert get(server, token=token) == 503
    assert get(server, token=token) == 200  # what nobody could say is not kept


def test_nobody_waits_for_the_answer_to_another(world, server, monkeypatch) -> None:
    """The API server says nothing of one token; who comes with another one gets metrics meanwhile."""
    monkeypatch.setattr("jaxsched.kube.cluster.monitoring.PATIENCE_S", 2.0)
    token = account(world, reads=True)
    eventually(lambda: MetricsAccess(world.api).check(f"Bearer {token}")[0] == 200)
    silent = world.proxy.inject("POST", "tokenreviews", hang=True)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(get, server, token="nonsense")
        eventually(lambda: silent.hits == 1)
        assert get(server, token=token) == 200 and not waits.done()
        assert waits.result() == 503


def test_pages_are_served_over_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    made = ("-newkey", "rsa:2048", "-nodes", "-keyout", "tls.key", "-out", "tls.crt", "-days", "2")
    named = ("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", "req", "-x509", *made, *named], cwd=tmp_path, check=True, capture_output=True)
    server = serve("127.0.0.1", 0, Metrics(), lambda: "", lambda: "", tls=read_certificate(tmp_path))
    try:
        context = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
        page = f"https://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(page, context=context, timeout=10) as answer:
            assert answer.status == 200 and b"jaxsched_leader" in answer.read()
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(page.replace("https", "http"), timeout=10)
        with urllib.request.urlopen(page, context=context, timeout=10) as answer:  # who does not speak it harms nobody
            assert answer.status == 200
    finally:
        server.shutdown()
        server.server_close()


def test_a_folder_without_a_certificate_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--metrics-certificate .*tls.crt and tls.key cannot be used"):
        read_certificate(tmp_path)
    (tmp_path / "tls.crt").write_text("x")
    (tmp_path / "tls.key").write_text("y")
    with pytest.raises(UserError, match=r"--metrics-certificate .*give a folder with both"):
        read_certificate(tmp_path)
