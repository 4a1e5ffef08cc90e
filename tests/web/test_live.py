"""Both pages, as the program embeds them, against a running server."""
import json
import os
import urllib.request

import pytest
from conftest import ROOT, ask, finished, ready_chat, start_server, stop_server


def fetched(url):
    with urllib.request.urlopen(url) as response:
        return response.read(), response.headers


def test_pages_are_those_of_the_tree(live_url):
    for path, name in (("/", "chat"), ("/dashboard", "dashboard")):
        body, headers = fetched(live_url + path)
        assert body == (ROOT / f"web/{name}.html").read_bytes(), "build the program again"
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "text/html" in headers["Content-Type"]


def test_live_conversation(live_url, open_page):
    page = ready_chat(open_page(live_url))
    assert page.locator("#model option").count() >= 1
    page.click("#settings")
    page.fill("#temperature", "0")
    page.fill("#max_completion_tokens", "40")
    ask(page, "Hello! Who are you?")
    answer = finished(page)
    first = answer.locator(".answer").inner_text()
    assert first and "tokens/s" in answer.locator(".numbers").inner_text() and "prompt " in answer.locator(".numbers").inner_text()
    ask(page, "Tell me a story about a little fox who lost her hat.")
    page.wait_for_function("document.querySelectorAll('article').length === 4")
    assert "token limit" in finished(page).inner_text()
    page.reload()
    assert page.locator("article").count() == 4 and page.locator(".answer").first.inner_text() == first


def test_live_refusal(live_url, open_page):
    page = ready_chat(open_page(live_url))
    page.click("#settings")
    page.fill("#tools", json.dumps([{"type": "telepathy"}]))
    ask(page, "x")
    assert "tools" in finished(page).locator("[role=alert]").inner_text()


def test_live_dashboard(live_url, open_page):
    body = json.dumps({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}).encode()
    request = urllib.request.Request(live_url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request).read()
    stats = json.loads(fetched(live_url + "/stats")[0])
    assert stats["generation_tokens"] > 0
    page = open_page(live_url + "/dashboard")
    page.wait_for_selector("#status[data-state=ready]")
    assert f"{stats['generation_tokens']:,} tokens" in page.locator("#tile-generated").inner_text()
    assert "of" in page.locator("#tile-cache").inner_text() and "s" in page.locator("#latencies td").first.inner_text()
    if stats["experts"]:
        assert "Busiest: layer" in page.locator("#heat-text").inner_text()
    page.click("text=Chat")
    ready_chat(page)


@pytest.mark.skipif(bool(os.environ.get("MOESAIC_URL")), reason="starts a server of its own")
def test_live_key_and_end(open_page):
    server, url = start_server("--api-key", "sesame", "--protect-metrics")
    try:
        page = open_page(url)
        page.fill("#key", "sesame")
        page.press("#key", "Enter")
        ask(ready_chat(page), "Hello!")
        assert finished(page).locator(".answer").inner_text()
        page.goto(url + "/dashboard")  # the tab has the key
        page.wait_for_selector("#status[data-state=ready]")
    finally:
        stop_server(server)
    page.wait_for_selector("#banner >> text=cannot be reached")
