"""hccn_tool's answers and /etc/hccn.conf are read, and what they hide is said."""

from __future__ import annotations

import pytest

from cluster.devices.hccn import QUERIES, Nic, check_network, check_tls, parse_conf

ANSWERS = {
    "link up": ("link", "link status: UP\n", "UP"),
    "link down": ("link", "link status: DOWN\n", "DOWN"),
    "healthy": ("health", "net health status: Success\n", "Success"),
    "faulty": ("health", "net health status: Fault\n", "Fault"),
    "no probe": (
        "health",
        "net health status: Detect address is not set\n",
        "Detect address is not set",
    ),
    "address": ("address", "ipaddr:10.86.1.80\nnetmask:255.255.255.0\n", "10.86.1.80"),
    "netmask": ("netmask", "ipaddr:10.86.1.80\nnetmask:255.255.255.0\n", "255.255.255.0"),
    "no address": ("address", "Get ipconf failed, because no ip was preset there!\n", None),
    "gateway": ("gateway", "default gateway:10.86.1.254, Iface:eth1\n", "10.86.1.254"),
    "netdetect": ("netdetect", "netdetect address: 10.86.1.254\n", "10.86.1.254"),
    "switch": ("switch_port", "Port ID TLV\n\tIfname: 400GE1/1/20:2\n", "400GE1/1/20:2"),
    "tls": ("tls", "dev_id:0, tls switch[1](0:disable, 1:enable), tls preconfigured[1]\n", "1"),
    "ping": ("loss_percent", "3 packets transmitted, 3 received, 0.00% packet loss\n", "0.00"),
}


@pytest.mark.parametrize(("query", "text", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_found_in_what_hccn_tool_prints(
    query: str, text: str, answer: str | None
) -> None:
    assert QUERIES[query].read(text) == answer


def test_hccn_conf_is_read_by_physical_id_also_from_10_up() -> None:
    text = "\n# rail\naddress_0=192.168.10.21\nnetmask_0=255.255.255.0\nsend_arp_status_0=1\n"
    text += "address_12 = 192.168.10.33\ngateway_12=192.168.10.1\nnetdetect_12=192.168.10.1\n"
    assert parse_conf(text) == {
        0: Nic("192.168.10.21", "255.255.255.0"),
        12: Nic("192.168.10.33", None, "192.168.10.1", "192.168.10.1"),
    }


WELL = {"link": "UP", "health": "Success", "address": "10.0.0.1", "tls": "0"}
FAULTS = {
    "all well": ({0: WELL}, []),
    "nothing asked": ({0: {}}, []),
    "link down": ({0: WELL | {"link": "DOWN"}}, ["network-link"]),
    "fault": ({0: WELL | {"health": "Fault"}}, ["network-health"]),
    "unprobed": ({0: WELL | {"health": "Detect address is not set"}}, ["network-health"]),
    "no address": ({0: WELL | {"address": None}}, ["network-address"]),
    "placeholder": ({0: WELL | {"address": "-.-.-.-"}}, ["network-address"]),
    "stale file": ({1: WELL}, ["network-stale-conf"]),
    "address twice": ({0: WELL, 2: WELL}, ["network-duplicate"]),
    "tls differs": ({0: WELL, 2: WELL | {"address": "10.0.0.2", "tls": "1"}}, ["network-tls"]),
}


@pytest.mark.parametrize(("answers", "codes"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_network_is_found(
    answers: dict[int, dict[str, str | None]], codes: list[str]
) -> None:
    conf = {0: Nic("10.0.0.1"), 1: Nic("10.0.0.99")}
    assert [finding.code for finding in check_network(answers, conf)] == codes


def test_tls_is_compared_over_nodes() -> None:
    (finding,) = check_tls({"a/0": "1", "b/0": "0", "b/1": None})
    assert "on for a/0 and off for b/0" in finding.saw
