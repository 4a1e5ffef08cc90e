"""How both pages look and feel: keyboard, phone, light and dark."""
import re

import pytest
from conftest import ask, finished, ready_chat
from mock_server import ROLE, DONE, chunk, said, stats

PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}
WIDE = "A line that does not end: " + "x" * 300 + "\n\n```\n" + "code " * 80 + "\n```\n\n| " + "a long heading | " * 9 + "\n|" + "-|" * 9 + "\n| " + "cell | " * 9 + "\n\n`" + "y" * 200 + "`"

# The luminance contrast of each visible text of the page, as WCAG 2 has it.
CONTRASTS = """() => {
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = c => { const [r, g, b] = c.map(x => x / 255).map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const behind = node => !node ? [255, 255, 255, 1] : over(rgba(getComputedStyle(node).backgroundColor), behind(node.parentElement));
  const out = [];
  for (const node of document.querySelectorAll('body *')) {
    const shown = node.checkVisibility({opacityProperty: true}) && !node.closest(':disabled, svg, .unseen, script');
    if (!shown || ![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) continue;
    const back = behind(node), ink = over(rgba(getComputedStyle(node).color), back), [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
    out.push({text: node.textContent.trim().slice(0, 40), contrast: (a + .05) / (b + .05)});
  }
  return out; }"""


def readable(page):
    found = page.evaluate(CONTRASTS)
    assert len(found) > 5
    assert [one for one in found if one["contrast"] < 4.5] == []


def no_sideways(page):
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def is_dark(page):
    return sum(map(int, re.findall(r"\d+", background(page)))) < 3 * 128


def a_conversation(mock, page):
    mock.stream = [ROLE, chunk({"reasoning_content": "Hm."}), *said("# Title\n\nSome *text*, [a link](https://x.y), `code`.\n\n> quoted\n\n```py\nx = 1\n```\n\n| a | b |\n|-|-|\n| 1 | 2 |")[1:]]
    ask(page, "Hello")
    finished(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_system_says_light_or_dark_until_the_reader_does(mock, open_page, scheme):
    page = ready_chat(open_page(mock.url, color_scheme=scheme))
    assert is_dark(page) == (scheme == "dark")
    a_conversation(mock, page)
    page.click("#settings")
    readable(page)
    page.click("#theme")
    assert is_dark(page) != (scheme == "dark")
    readable(page)
    page.reload()
    assert is_dark(page) != (scheme == "dark")
    page.goto(mock.url + "/dashboard")  # it keeps to the same choice
    assert is_dark(page) != (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dashboard_is_readable(mock, open_page, scheme):
    mock.stats = stats(experts=[[1, 2, 3, 0]] * 3)
    page = open_page(mock.url + "/dashboard", color_scheme=scheme)
    page.wait_for_selector("#experts:visible")
    readable(page)
    painted = "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size"
    before = page.locator("#heat").evaluate(painted)
    assert before > 10
    page.click("#theme")
    assert is_dark(page) != (scheme == "dark")
    readable(page)


def test_phone(mock, open_page):
    page = ready_chat(open_page(mock.url, **PHONE))
    no_sideways(page)
    mock.stream = said(WIDE)
    ask(page, "z" * 200)
    answer = finished(page)
    no_sideways(page)
    assert page.locator("#scroll").evaluate("node => node.scrollWidth <= node.clientWidth")
    assert answer.locator("pre").evaluate("node => node.scrollWidth > node.clientWidth")  # code scrolls by itself
    assert answer.locator(".acts button").first.evaluate("node => getComputedStyle(node).opacity") == "1"  # nothing hovers here
    for selector in ("#new", "#theme", "#settings", "#send"):
        box = page.locator(selector).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["height"] >= 36, selector
    assert page.locator("#input").evaluate("node => parseFloat(getComputedStyle(node).fontSize)") >= 16  # or iOS zooms in
    page.tap("#settings")
    no_sideways(page)
    assert page.locator("#panel").bounding_box()["width"] == 360
    page.tap("#close")
    assert not page.locator("#panel").is_visible()


def test_dashboard_on_a_phone(mock, open_page):
    mock.stats = stats(experts=[[k % 7 for k in range(256)]] * 60)
    page = open_page(mock.url + "/dashboard", **PHONE)
    page.wait_for_selector("#experts:visible")
    no_sideways(page)
    for figure in page.locator("figure, .tile").all():
        box = figure.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_everything_can_be_reached_with_the_keyboard(mock, chat):
    a_conversation(mock, chat)
    chat.click("#settings")
    reached = []
    for _ in range(60):
        chat.keyboard.press("Tab")
        node = chat.evaluate("""() => { const node = document.activeElement, style = getComputedStyle(node), box = node.closest('#composer') || node;
          return {name: node.id || node.textContent.trim(), ring: parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== 'none' || box.id === 'composer',
            seen: node.checkVisibility({opacityProperty: true})}; }""")
        if chat.evaluate("document.activeElement === document.body"):
            continue  # from the last to the first
        assert node["ring"] and node["seen"], node
        reached.append(node["name"])
    for name in ("new", "theme", "settings", "model", "Edit", "Copy", "Regenerate", "input", "system", "temperature", "tools", "export-json", "clear", "key-open", "Dashboard"):
        assert name in reached, name


def test_keys_alone_hold_a_conversation(mock, chat):
    assert chat.evaluate("document.activeElement.id") == "input"
    mock.stream = [ROLE, chunk({"content": "Once"}), 3, DONE]
    chat.keyboard.type("Hello")
    chat.keyboard.press("Enter")
    chat.wait_for_selector("article >> text=Once")
    chat.keyboard.press("Escape")
    finished(chat)
    mock.stream = said("Good day.")
    chat.keyboard.press("ArrowUp")  # edits what was said last
    chat.keyboard.press("End")
    chat.keyboard.type("!")
    chat.keyboard.press("Enter")
    chat.wait_for_selector("article >> text=Good day.")
    assert mock.requests[1]["messages"] == [{"role": "user", "content": "Hello!"}]
    assert chat.evaluate("document.activeElement.id") == "input"
    chat.focus("#settings")
    chat.keyboard.press("Enter")
    assert chat.evaluate("document.activeElement.id") == "system" and chat.get_attribute("#settings", "aria-expanded") == "true"
    chat.keyboard.press("Escape")
    assert not chat.locator("#panel").is_visible() and chat.evaluate("document.activeElement.id") == "input"


def test_names_for_those_who_do_not_see(mock, open_page):
    page = ready_chat(open_page(mock.url))
    a_conversation(mock, page)
    page.click("#settings")
    for address in (mock.url, mock.url + "/dashboard"):
        nameless = page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea, a, [role=img]')].filter(node => node.checkVisibility())
          .filter(node => !(node.getAttribute('aria-label') || node.textContent.trim() || node.labels?.length)).map(node => node.outerHTML)""")
        assert nameless == [], address
        page.goto(mock.url + "/dashboard")
        page.wait_for_selector("#status[data-state=ready]")
    page.goto(mock.url)
    assert page.get_attribute("#live", "aria-live") == "polite" and page.get_attribute("html", "lang") == "en"


def test_pages_need_nothing_from_elsewhere(mock, open_page):
    for path in ("/", "/dashboard"):
        page = open_page("about:blank")
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(mock.url + path)
        page.wait_for_selector("#status[data-state=ready]", state="attached")
        assert asked and all(url.startswith((mock.url, "data:image/svg")) for url in asked)
        assert page.evaluate("document.querySelectorAll('script[src], link[rel=stylesheet], img[src^=http]').length") == 0


def test_scrolling_up_is_respected(mock, chat):
    mock.stream = [ROLE, *[part for k in range(40) for part in (chunk({"content": f"Paragraph {k}.\n\n"}), 0.02)], chunk({}, "stop"), DONE]
    ask(chat, "long")
    chat.wait_for_selector("article >> text=Paragraph 25.")
    chat.locator("#scroll").evaluate("node => { node.scrollTop = 0; }")
    finished(chat)
    assert chat.locator("#scroll").evaluate("node => node.scrollTop") == 0
    chat.click("#below")
    assert chat.locator("#scroll").evaluate("node => node.scrollHeight - node.scrollTop - node.clientHeight") < 5
