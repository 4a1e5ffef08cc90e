"""The dashboard against a mock server."""
from conftest import WAIT_MS
from mock_server import error, stats


def opened(open_page, mock):
    page = open_page(mock.url + "/dashboard")
    page.wait_for_selector("#status[data-state=ready]")
    return page


def wait_for(page, condition):
    page.wait_for_function(condition, timeout=WAIT_MS)


def test_numbers_of_stats_are_shown(mock, open_page):
    page = opened(open_page, mock)
    tiles = {"generated": ["96.3 tokens/s", "1,234 tokens"], "read": ["813 tokens/s", "9,000"], "running": ["3", "1 waiting"], "cache": ["25 %", "50 of 200 blocks"],
             "prefix": ["64 %", "640 of 1,000"], "first": ["50 ms", "400 ms"]}
    for name, words in tiles.items():
        text = page.locator("#tile-" + name).inner_text()
        assert all(word in text for word in words), (name, text)
    assert page.locator("#latencies").inner_text().split() == "To the first token 50 ms 120 ms 400 ms Between tokens 11 ms 13 ms 21 ms Whole answer 1.50 s 3.25 s 8.00 s".split()
    assert page.locator("#totals dd").all_inner_texts() == ["5", "1", "0", "0", "2", "3 of 16"]
    assert "mock" in page.locator("header").inner_text() and "up 1 min" in page.locator("header").inner_text()
    assert "kept for reuse 50 %" in page.locator("#chart-cache").inner_text() and "48" in page.locator("#chart-steps").inner_text()
    assert not page.locator("#experts").is_visible() and not page.locator("#banner").is_visible()


def test_it_asks_each_second_and_draws_what_changes(mock, open_page):
    page = opened(open_page, mock)
    mock.stats = stats(running=12, generation_tokens_per_second=1500.0)
    page.wait_for_selector("#tile-running >> text=12")
    wait_for(page, "() => samples.length >= 3")
    gaps = page.evaluate("samples.slice(1).map((sample, i) => sample.time - samples[i].time)")
    assert all(900 <= gap < 4000 for gap in gaps)
    assert page.locator("#chart-generated svg").get_attribute("aria-label") == "Generated tokens/s: 1,500"
    line = page.locator("#chart-generated path[stroke]").get_attribute("d")
    heights = [float(point.split()[1]) for point in line[1:].split("L")]
    assert heights[0] > heights[-1]  # larger is higher
    assert "2,000" in page.locator("#chart-generated svg").text_content()


def test_the_past_can_be_pointed_at_and_silence_is_a_gap(mock, open_page):
    page = opened(open_page, mock)
    page.evaluate("""all => { const now = Date.now(); samples.length = 0;
      all.forEach((stats, i) => { if (i < 60 || i > 80) samples.push({time: now - (all.length - i) * 1000, stats}); }); poll(); }""", [stats(running=i) for i in range(200)])
    wait_for(page, "() => document.querySelectorAll('#chart-requests path[stroke]').length === 4")  # two series, two pieces each
    box = page.locator("#chart-requests svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * (1 - 150 / 300), box["y"] + 50)
    shown = int(page.locator("#chart-requests b").first.inner_text())
    assert 45 <= shown <= 55
    page.mouse.move(0, 0)
    wait_for(page, "() => document.querySelector('#chart-requests b').textContent === '3'")


def test_a_lost_server_is_said_and_found_again(mock, open_page):
    page = opened(open_page, mock)
    page.context.set_offline(True)
    page.wait_for_selector("#banner >> text=cannot be reached")
    assert "Last heard at" in page.locator("#banner").inner_text()
    assert page.locator("main.stale").count() == 1 and page.get_attribute("#status", "data-state") == "down"
    assert "96.3" in page.locator("#tile-generated").inner_text()  # what was known stays
    page.context.set_offline(False)
    page.wait_for_selector("#status[data-state=ready]")
    assert not page.locator("#banner").is_visible() and page.locator("main.stale").count() == 0


def test_loading_and_strange_answers_are_said(mock, open_page):
    zero = {"p50": 0, "p90": 0, "p99": 0}
    mock.stats = stats(ready=False, loaded_bytes=3 << 30, total_bytes=12 << 30, blocks=0, blocks_used=0, prefix_queries=0, prefix_hits=0,
                       latency={"ttft": zero, "itl": zero, "e2e": zero})
    page = open_page(mock.url + "/dashboard")
    page.wait_for_selector("#banner >> text=3.0 of 12.0 GiB, 25 %")
    assert "NaN" not in page.inner_text("body") and "–" in page.locator("#tile-cache").inner_text()
    mock.stats = {"model": "other"}
    page.wait_for_selector("#banner >> text=not what this page knows")
    mock.stats = stats()
    page.wait_for_selector("#status[data-state=ready]")


def test_a_key_is_asked_for_where_stats_are_protected(mock, open_page):
    mock.key = "sesame"
    page = open_page(mock.url + "/dashboard")
    page.wait_for_selector("#banner >> text=Invalid API key")
    page.fill("#key", "sesame")
    page.wait_for_timeout(1200)  # a poll in between takes nothing away
    page.keyboard.press("Enter")
    page.wait_for_selector("#status[data-state=ready]")
    assert not page.locator("#banner").is_visible() and "sesame" not in page.evaluate("JSON.stringify(localStorage)")


def test_experts_can_be_asked_with_pointer_and_keys(mock, open_page):
    mock.stats = stats(experts=[[10, 10, 10, 10], [0, 40, 0, 0]])
    page = opened(open_page, mock)
    text = page.locator("#heat-text")
    assert text.inner_text() == "Busiest: layer 1, expert 1 with 40 tokens, 4.0 times an even share. 3 of 8 had none."
    page.locator("#heat").scroll_into_view_if_needed()
    box = page.locator("#heat").bounding_box()
    page.mouse.move(box["x"] + box["width"] * .6, box["y"] + box["height"] * .2)
    assert text.inner_text() == "Layer 0, expert 2: 10 tokens, 1.0 times an even share."
    page.mouse.move(0, 0)
    page.focus("#heat")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert text.inner_text().startswith("Layer 1, expert 1: 40 tokens")
    colours = page.locator("#heat").evaluate("""canvas => [.12, .37].map(x => [...canvas.getContext('2d').getImageData(canvas.width * x, canvas.height * .75, 1, 1).data])""")
    assert sum(colours[0][:3]) > sum(colours[1][:3]) + 200  # on light paper a busy expert is dark
    page.keyboard.press("Tab")


def test_experts_of_the_last_minute(mock, open_page):
    mock.stats = stats(experts=[[1000, 0]])
    page = opened(open_page, mock)
    page.click("#lately")
    assert page.locator("#heat-text").inner_text() == "No tokens in the last minute."
    mock.stats = stats(experts=[[1000, 7]])
    page.wait_for_selector("#heat-text >> text=layer 0, expert 1 with 7 tokens, 2.0 times")
    mock.stats = stats(experts=[[5, 5]], uptime_seconds=1.0)  # started anew: counts begin at zero
    page.wait_for_selector("#heat-text >> text=No tokens in the last minute.")
    page.click("#all")
    assert "5 tokens" in page.locator("#heat-text").inner_text()


def test_text_of_the_server_stays_text(mock, open_page):
    mock.stats = stats(model="<img src=x onerror=window.hacked=1>")
    page = opened(open_page, mock)
    assert page.locator("#model").inner_text() == "<img src=x onerror=window.hacked=1>" and page.evaluate("window.hacked") is None
    mock.stats = stats()
    page.route("**/stats", lambda route: route.fulfill(status=500, json=error(500, "<b>broken</b>")[1]))
    page.wait_for_selector("#banner >> text=<b>broken</b>")
