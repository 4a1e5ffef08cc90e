"""What models write is drawn as Markdown, and nothing of it ever becomes markup or script."""
import json
import time

from conftest import ask, finished
from mock_server import DONE, ROLE, chunk, error, said

ATTACKS = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload=window.hacked=1><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "[press](javascript:window.hacked=1)",
    "[press](JaVaScRiPt:window.hacked=1) [press](java\tscript:window.hacked=1) [press](&#106;avascript:window.hacked=1)",
    "[press](data:text/html,<script>opener.hacked=1</script>) [press](vbscript:x)",
    "[a](https://x.y/\"onmouseover=window.hacked=1//) [a](https://x.y \"t\\\" onclick=window.hacked=1\")",
    "<https://x.y/' onclick='window.hacked=1>",
    "```\"><img src=x onerror=window.hacked=1>\n</code></pre><script>window.hacked=1</script>\n```",
    "`</code><script>window.hacked=1</script>`",
    "| <img src=x onerror=window.hacked=1> | b |\n|---|---|\n| <script>window.hacked=1</script> | [x](javascript:window.hacked=1) |",
    "- <details open ontoggle=window.hacked=1>\n> <a href=javascript:window.hacked=1>x</a>\n# <style>*{display:none}</style>",
    "![track](https://evil.example/pixel.png) <img src=https://evil.example/pixel.png>",
]
# Everything that an answer may consist of; on* and style attributes are looked for apart.
ALLOWED = {"P", "BR", "STRONG", "EM", "DEL", "CODE", "PRE", "FIGURE", "FIGCAPTION", "BUTTON", "UL", "OL", "LI", "BLOCKQUOTE", "HR", "A",
           "H1", "H2", "H3", "H4", "H5", "H6", "DIV", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD"}
DRAWN = """log => [...log.querySelectorAll('.md *')].map(node => ({tag: node.tagName, text: node.textContent,
  href: node.getAttribute('href'), bad: [...node.attributes].map(a => a.name).filter(name => name.startsWith('on') || name === 'src')}))"""


def draw(mock, page, text):
    mock.stream = said(text)
    ask(page, "x")
    return finished(page)


def drawn(page):
    return page.locator("#log").evaluate(DRAWN)


def not_attacked(page):
    nodes = drawn(page)
    assert nodes
    for node in nodes:
        assert node["tag"] in ALLOWED and not node["bad"], node
        assert node["href"] is None or node["href"].startswith(("https://", "http://", "mailto:")), node
    page.wait_for_timeout(30)
    assert page.evaluate("window.hacked") is None


def test_markup_of_a_model_stays_text(mock, chat):
    requested = []
    chat.on("request", lambda request: requested.append(request.url))
    for attack in ATTACKS:
        answer = draw(mock, chat, attack)
        not_attacked(chat)
        for link in answer.locator(".answer a").all():
            assert link.get_attribute("rel") == "noopener noreferrer" and link.get_attribute("target") == "_blank"
    assert all(url.startswith(mock.url) for url in requested)
    chat.reload()
    assert chat.locator("article").count() == 2 * len(ATTACKS)
    not_attacked(chat)


def test_every_other_text_of_a_server_stays_text_too(mock, chat):
    attack = ATTACKS[1]
    call = {"index": 0, "id": attack, "type": "function", "function": {"name": attack, "arguments": attack}}
    mock.stream = [ROLE, chunk({"reasoning_content": attack}), chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), DONE]
    ask(chat, attack)
    assert attack in finished(chat).locator(".call summary").inner_text()
    chat.fill(".call textarea", attack)
    mock.stream = error(400, attack)
    chat.click("text=Send result")
    chat.wait_for_selector("[role=alert]")
    assert attack in chat.locator("[role=alert]").inner_text()
    mock.models = [attack]
    chat.reload()
    chat.wait_for_selector("#model option", state="attached")
    assert chat.locator("#model option").text_content() == attack
    assert not chat.locator("#log img, #log script").count() and chat.evaluate("window.hacked") is None


def test_a_damaged_conversation_in_storage_is_no_way_in(mock, chat):
    talk = [{"role": "assistant", "content": ATTACKS[1], "reasoning": ATTACKS[0], "numbers": ATTACKS[1], "error": ATTACKS[1]}]
    chat.evaluate("text => localStorage.setItem('moesaic.chat', text)", json.dumps(talk))
    page = chat.context.new_page()
    page.goto(mock.url)
    page.wait_for_selector("article")
    not_attacked(page)


CASES = [
    ("# One\n\n### Three", [("H1", "One"), ("H3", "Three")]),
    ("a **b** _c_ ~~d~~ `e`", [("P", "a b c d e"), ("STRONG", "b"), ("EM", "c"), ("DEL", "d"), ("CODE", "e")]),
    ("2 * 3 * 4 and snake_case_name", [("P", "2 * 3 * 4 and snake_case_name")]),
    ("- a\n- b\n  - c", [("UL", None), ("LI", None), ("LI", None), ("UL", "c"), ("LI", "c")]),
    ("3. a\n4. b", [("OL", "ab"), ("LI", "a"), ("LI", "b")]),
    ("> q\n\nafter", [("BLOCKQUOTE", "q"), ("P", "q"), ("P", "after")]),
    ("[a](https://x.y/z_(1))", [("P", "a"), ("A", "a")]),
    ("see https://x.y/a_b.", [("P", "see https://x.y/a_b."), ("A", "https://x.y/a_b")]),
    ("| a | b |\n|:-:|--:|\n| 1 \\| 2 | 3 |", [("DIV", None), ("TABLE", None), ("THEAD", None), ("TR", None), ("TH", "a"), ("TH", "b"), ("TBODY", None),
                                            ("TR", None), ("TD", "1 | 2"), ("TD", "3")]),
    ("---", [("HR", "")]),
    ("\\*no\\*", [("P", "*no*")]),
    ("``a ` b``", [("P", "a ` b"), ("CODE", "a ` b")]),
]


def test_markdown(mock, chat):
    for text, nodes in CASES:
        answer = draw(mock, chat, text)
        got = [(node["tag"], node["text"]) for node in answer.locator(".answer").evaluate(DRAWN.replace("'.md *'", "'*'"))]
        assert [tag for tag, _ in got] == [tag for tag, _ in nodes], text
        for (tag, have), (_, want) in zip(got, nodes):
            assert want is None or have == want, (text, tag)


def test_an_open_code_block_is_drawn_while_it_grows(mock, chat):
    mock.stream = [ROLE, chunk({"content": "Run\n\n```py\nfor i in x:\n    *not em*"}), 0.4, chunk({"content": "\n```\nDone **now**."}), chunk({}, "stop"), DONE]
    ask(chat, "x")
    chat.wait_for_selector("article[aria-label=Answer] pre >> text=for i in x:")
    assert chat.locator(".answer strong, .answer em").count() == 0
    answer = finished(chat)
    assert answer.locator("pre").inner_text() == "for i in x:\n    *not em*"
    assert answer.locator("figcaption").inner_text().startswith("py") and answer.locator("strong").inner_text() == "now"


HOSTILE = ["*" * 20000, "**a " * 5000, "[" * 20000, "`" * 20001, "|" * 20000 + "\n|-" * 3000, "> " * 10000, "- " * 10000, "[a](" * 5000, "_a" * 10000,
           "http://" * 3000, "  " * 200 + "- x\n" * 3000, "```\n" * 3001]


def test_hostile_markdown_is_drawn_soon(chat):
    for text in HOSTILE:
        begin = time.monotonic()
        nodes = chat.evaluate("text => { const box = el('div'); drawMarkdown(box, text); return box.childNodes.length; }", text)
        assert nodes and time.monotonic() - begin < 3, text[:20]
