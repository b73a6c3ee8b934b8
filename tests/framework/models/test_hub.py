"""Detection of a hub within seconds on any network."""

import time
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from framework.models import hub


@pytest.fixture(autouse=True)
def online(monkeypatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # a closed port


def answering(monkeypatch, head) -> None:
    monkeypatch.setattr(hub, "get_session", lambda: SimpleNamespace(head=head))


def test_a_closed_port_is_no_hub():
    assert hub.why_unreachable() == "http://127.0.0.1:9 cannot be reached"


@pytest.mark.parametrize(("status", "reachable"), [(200, True), (302, True), (404, True), (502, False), (504, False)])
def test_a_proxy_that_cannot_reach_the_hub_is_no_hub(monkeypatch, status, reachable):
    answering(monkeypatch, lambda url, timeout: SimpleNamespace(status_code=status))
    assert (hub.why_unreachable() is None) == reachable


@pytest.mark.slow
def test_a_name_server_that_never_answers_costs_seconds(monkeypatch):
    answering(monkeypatch, lambda url, timeout: time.sleep(30))
    monkeypatch.setattr(hub, "SECONDS", 0.1)
    began = time.monotonic()
    assert "cannot be reached" in str(hub.why_unreachable())
    assert time.monotonic() - began < 5


def test_no_more_than_five_seconds_are_waited():
    assert hub.SECONDS + 1 <= 5


def test_offline_mode_asks_nobody(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "get_session", lambda: pytest.fail("asks the hub"))
    assert hub.why_unreachable() == "HF_HUB_OFFLINE is set"


def test_a_missing_folder_in_an_existing_one_is_no_hub_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    monkeypatch.setattr(hub, "why_unreachable", lambda: pytest.fail("asks the hub"))
    with pytest.raises(
        FileNotFoundError, match=r"^path is 'outputs/x', no such folder in outputs, and not downloaded;"
    ):
        hub.locate("outputs/x")


@pytest.mark.parametrize("answers", [True, False])
def test_a_downloaded_repository_is_found_beside_a_folder_of_its_owners_name(monkeypatch, tmp_path, answers):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda path, name: "file")
    monkeypatch.setattr(hub, "why_unreachable", lambda: None if answers else "no network")
    assert hub.locate("owner/model").is_local is not answers
