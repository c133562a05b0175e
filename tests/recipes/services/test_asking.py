"""What a closed asker does; the rest is tested where recipes ask: judges, critic, reference."""

from __future__ import annotations

import httpx
import pytest

from gangflow.recipes.services.asking import CONNECT_TIMEOUT_S, Asking, ServiceFailed


def test_a_closed_one_asks_no_more_and_says_no_more_that_it_waits() -> None:
    told: list[str] = []

    def waiting(reason: str) -> None:
        told.append(reason)
        asking.close()  # as another thread does that ends the program

    asking = Asking(lambda member: [], patience_s=60.0, waiting=waiting)
    with pytest.raises(ServiceFailed, match="critic is asked no more; last: critic has no endpoint"):
        asking.ask("critic", "/values", {})
    assert told == ["critic has no endpoint"]


def test_a_closed_one_does_not_even_ask_once() -> None:
    asking = Asking(lambda member: ["http://127.0.0.1:1"], patience_s=60.0)
    asking.close()
    with pytest.raises(ServiceFailed, match="ref is asked no more"):
        asking.ask("ref", "/logprobs", {})
    assert asking.repeated == 0


def test_a_long_answer_is_waited_for_but_not_a_host_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first replica's host is gone: nothing refuses the connection. The second one takes longer than a connection may."""
    seen: list[tuple[str, dict[str, float]]] = []

    def answered(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.extensions["timeout"]))
        if request.url.host == "gone":
            raise httpx.ConnectTimeout("", request=request)
        return httpx.Response(200, json={"ok": True})

    real = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: real(**options, transport=httpx.MockTransport(answered)))
    asking = Asking(lambda member: ["http://gone", "http://there"], patience_s=60.0, request_timeout_s=600.0)
    assert asking.ask("ref", "/logprobs", {}) == {"ok": True}
    assert [host for host, _ in seen] == ["gone", "there"]
    assert all((limits["connect"], limits["read"]) == (CONNECT_TIMEOUT_S, 600.0) for _, limits in seen)
