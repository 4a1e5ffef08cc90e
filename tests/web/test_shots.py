"""The pictures in docs/images, of a live server with the demo model; taken when MOESAIC_SHOTS names the folder."""
import io
import json
import os
import pathlib
import random
import threading
import time
import urllib.request

import pytest
from PIL import Image
from conftest import ROOT, ask, finished, ready_chat

FOLDER = os.environ.get("MOESAIC_SHOTS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="MOESAIC_SHOTS is not set")
DESK = {"viewport": {"width": 1000, "height": 680}}
STORY = "Tell me a story about a little fox who lost her hat."


def shoot(page, name, **options):
    path = pathlib.Path(ROOT / FOLDER / (name + ".png"))
    page.wait_for_timeout(150)
    picture = Image.open(io.BytesIO(page.screenshot(**options))).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < 100_000, f"{path} is too large for the repository"


def conversation(open_page, url, **options):
    page = ready_chat(open_page(url, **options))
    page.evaluate("localStorage.setItem('moesaic.settings', JSON.stringify({temperature: '0'}))")
    page.reload()
    for text in ("Hello! Who are you?", STORY):
        ask(ready_chat(page), text)
        finished(page)
    page.wait_for_function("document.querySelectorAll('article').length === 4")
    return page


def test_chat_shots(live_url, open_page):
    shoot(conversation(open_page, live_url, **DESK), "chat-light")
    page = conversation(open_page, live_url, color_scheme="dark", **DESK)
    page.click("#settings")
    shoot(page, "chat-dark")
    phone = {"viewport": {"width": 360, "height": 640}, "device_scale_factor": 1.5, "is_mobile": True, "has_touch": True}
    shoot(conversation(open_page, live_url, **phone), "chat-phone")


def visitors(url, ended):
    """Conversations at random times, several at once; some run into their limit."""
    dice = random.Random(7)

    def visit(text, most):
        body = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": most}).encode()
        request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request).read()
        except OSError:
            pass  # the server ends before its last visitors do

    while not ended.is_set():
        animal = dice.choice(["fox", "owl", "mouse", "bear", "cat"])
        for _ in range(dice.randint(1, 5)):
            text = dice.choice([STORY, f"Tell me a story about a brave {animal}.", f"What sound does a {animal} make?"])
            threading.Thread(target=visit, args=(text, dice.choice([40, 400, 400])), daemon=True).start()
        time.sleep(dice.expovariate(4))


def test_dashboard_shot(live_url, open_page):
    page = open_page(live_url + "/dashboard", viewport={"width": 1100, "height": 760})
    ended = threading.Event()
    threading.Thread(target=visitors, args=(live_url, ended), daemon=True).start()
    page.wait_for_function("() => samples.length >= 58 && samples.at(-1).stats.running > 1", timeout=120_000)
    shoot(page, "dashboard", full_page=True)
    page.click("#theme")
    page.set_viewport_size({"width": 1100, "height": 560})
    shoot(page, "dashboard-dark")
    ended.set()
