from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from serve_apps import serve_settings

WRAPPER = Path(serve_settings.__file__).with_name("haproxy_local.sh")


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "RAY_SERVE_ENABLE_HA_PROXY=1"),
        ({"RAY_SERVE_ENABLE_HA_PROXY": "0"}, "before `ray start`"),
        ({"RAY_SERVE_ENABLE_HA_PROXY": "1"}, ""),
    ],
)
def test_a_cluster_without_haproxy_is_told_what_to_do(
    environment: dict[str, str], told: str
) -> None:
    advice = serve_settings.advice(environment)
    assert told in advice
    assert bool(told) == bool(advice)


def test_haproxys_pages_are_local_and_it_sees_clients_leave(tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        "defaults\n    option abortonclose\n    option splice-request\n"
        "    option splice-response\nfrontend prometheus\n    bind :9101\n"
        "frontend http_frontend\n    bind *:8000\n"
        "listen stats\n  bind *:8404\n"
    )
    haproxy = tmp_path / "haproxy"
    haproxy.write_text('#!/bin/sh\necho "$@"\n')
    haproxy.chmod(0o755)
    ended = subprocess.run(
        [WRAPPER, "-db", "-f", config],
        env=os.environ | {"RAYSCEND_HAPROXY": str(haproxy)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["-db", "-f", str(config)]
    text = config.read_text()
    assert "splice" not in text
    assert "abortonclose" in text
    assert "bind 127.0.0.1:9101" in text
    assert "bind 127.0.0.1:8404" in text
    assert "bind *:8000" in text, "where clients connect is the user's to say (http_host)"
