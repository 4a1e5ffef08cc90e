"""Fixtures: a browser, a page that must not complain, a mock server, and a live one where there is one.

MOESAIC_URL names a running server for test_live.py; without it build/bin/moesaic serve is started, if it can.
MOESAIC_CHROMIUM is the browser's path where it is not /usr/bin/chromium. MOESAIC_SHOTS=docs/images renews screenshots
(test_shots.py).
"""
import os
import pathlib
import re
import subprocess
import sys

import pytest
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from mock_server import Mock  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAIT_MS = 10000


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        path = os.environ.get("MOESAIC_CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def mock():
    server = Mock()
    yield server
    server.close()


@pytest.fixture
def open_page(browser):
    """open_page(url, **context options) gives a page. What the page throws, and what its policy forbids, fails the test."""
    complaints, contexts = [], []

    def complain(message):
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def open_it(url, **options):
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 760}, "reduced_motion": "reduce", **options})
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda fault: complaints.append(str(fault)))
        page.on("console", complain)
        page.goto(url)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture
def chat(mock, open_page):
    """The chat page, ready to send."""
    return ready_chat(open_page(mock.url))


def ready_chat(page):
    page.wait_for_selector("#status[data-state=ready]", state="attached")
    page.wait_for_selector("#model option", state="attached")
    return page


def ask(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def finished(page):
    """Waits until no answer is under way, and gives the last answer's node."""
    page.wait_for_selector("#log[aria-busy=false] article")
    return page.locator("#log article").last


PROGRAM = ROOT / "build/bin/moesaic"


def start_server(*flags):
    """A server with the demo model, and its address; skips where there is no program to start."""
    if not PROGRAM.exists():
        pytest.skip("no server: build build/bin/moesaic, or set MOESAIC_URL")
    command = [PROGRAM, "serve", ROOT / "models/demo", "--port", "0", "--log-requests", "none", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = ""
    for line in server.stdout:
        seen += line
        if found := re.search(r"http://[\w.:\[\]-]+:\d+", line):
            return server, found[0]
    pytest.fail("the server ended without printing its address:\n" + seen)


def stop_server(server):
    server.terminate()
    server.communicate(timeout=20)


@pytest.fixture(scope="session")
def live_url():
    """The address of a real server."""
    if os.environ.get("MOESAIC_URL"):
        yield os.environ["MOESAIC_URL"].rstrip("/")
        return
    server, url = start_server()
    yield url
    stop_server(server)
