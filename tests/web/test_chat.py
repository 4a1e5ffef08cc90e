"""The chat page against a mock server: conversations, settings, states of the server."""
import json
import threading

import pytest
from conftest import ask, finished, ready_chat
from mock_server import DONE, ROLE, chunk, error, frame, said, usage


def test_answer_streams_and_is_measured(mock, chat):
    more = threading.Event()
    mock.stream = [ROLE, chunk({"content": "It is "}), more, 0.1, chunk({"content": "**sunny**."}), chunk({}, "stop"),
                   usage(71, 19, 64, timings={"predicted_n": 19, "predicted_per_second": 38.25}), DONE]
    ask(chat, "Weather?")
    chat.wait_for_selector("article >> text=It is")  # before the rest was sent
    assert chat.locator("#send").inner_text() == "Stop"
    more.set()
    answer = finished(chat)
    assert answer.locator(".answer strong").inner_text() == "sunny"
    numbers = answer.locator(".numbers").inner_text()
    assert "19 tokens" in numbers and "38.3 tokens/s" in numbers and "prompt 71, 64 cached" in numbers and "first after " in numbers
    assert "sunny" in chat.locator("#live").text_content()
    body = mock.requests[0]
    assert body["messages"] == [{"role": "user", "content": "Weather?"}]
    assert body["stream"] and body["stream_options"]["include_usage"] and body["model"] == "mock"
    assert "temperature" not in body and "seed" not in body and "stop" not in body


def test_speed_is_measured_here_where_the_server_tells_none(mock, chat):
    mock.stream = [ROLE, chunk({"content": "a"}), 0.3, chunk({"content": "b"}), chunk({}, "stop"), usage(1, 4), DONE]
    ask(chat, "x")
    words = finished(chat).locator(".numbers").inner_text()
    speed = float(words.split(" tokens/s")[0].split("· ")[-1])
    assert 1 < speed < 11  # 3 tokens after the first in 0.3 s, at best


def test_frames_survive_any_cut_and_line_end(mock, chat):
    whole = b"".join([b": ping\n\n", ROLE, chunk({"content": "caf\u00e9 \U0001f98a "}), b": ping\n\n", chunk({"content": "\u6f22\u5b57"}), chunk({}, "stop"), DONE])
    for size, end in [(1, b"\n"), (7, b"\n"), (1, b"\r\n"), (3, b"\r\n"), (2, b"\r")]:
        sent = whole.replace(b"\n", end)
        mock.stream = [sent[i:i + size] for i in range(0, len(sent), size)]
        ask(chat, "cut")
        assert finished(chat).locator(".answer").inner_text() == "caf\u00e9 \U0001f98a \u6f22\u5b57", (size, end)


def test_frames_without_space_and_with_two_data_lines(mock, chat):
    mock.stream = [ROLE.replace(b"data: ", b"data:"), b'event: x\nid: 7\ndata: {"choices": [{"index": 0,\ndata: "delta": {"content": "both"}}]}\n\n', chunk({}, "stop"), DONE]
    ask(chat, "x")
    assert finished(chat).locator(".answer").inner_text() == "both"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_stands_apart(mock, chat, name):
    more = threading.Event()
    mock.stream = [ROLE, chunk({name: "Let me "}), chunk({name: "think."}), more, chunk({"content": "Four."}), chunk({}, "stop"), DONE]
    ask(chat, "2+2")
    chat.wait_for_selector("details.reasoning[open] >> text=Let me think.")
    assert chat.locator("details.reasoning summary").inner_text() == "Thinking…"
    more.set()
    answer = finished(chat)
    assert answer.locator("details.reasoning").get_attribute("open") is None
    assert answer.locator("summary").inner_text().startswith("Thought for")
    assert answer.locator(".answer").inner_text() == "Four."
    mock.stream = said("Yes.")
    ask(chat, "Sure?")
    finished(chat)
    assert mock.requests[1]["messages"][1] == {"role": "assistant", "content": "Four."}  # thoughts are not sent again


def test_esc_stops_and_closes_the_connection(mock, chat):
    never = threading.Event()
    mock.stream = [ROLE, chunk({"content": "Once "}), *[part for _ in range(100) for part in (0.03, chunk({"content": "more "}))], never, DONE]
    ask(chat, "story")
    chat.wait_for_selector("article >> text=Once")
    chat.keyboard.press("Escape")
    answer = finished(chat)
    assert "Stopped." in answer.inner_text() and answer.locator(".answer").inner_text().startswith("Once")
    assert mock.left.wait(3)
    assert chat.locator("#send").inner_text() == "Send"


def test_stop_button(mock, chat):
    mock.stream = [ROLE, chunk({"content": "Once"}), 3, DONE]
    ask(chat, "story")
    chat.wait_for_selector("article >> text=Once")
    chat.click("#send")
    assert "Stopped." in finished(chat).inner_text()


def test_regenerate_replaces_the_answer(mock, chat):
    ask(chat, "Hi")
    finished(chat)
    mock.stream = said("Another.")
    chat.click("article >> text=Regenerate")
    chat.wait_for_selector("article >> text=Another.")
    finished(chat)
    assert chat.locator("article").count() == 2 and mock.requests[0]["messages"] == mock.requests[1]["messages"]


def test_edit_drops_what_followed(mock, chat):
    for text in ("one", "two"):
        ask(chat, text)
        finished(chat)
    chat.locator("article.user").first.hover()
    chat.locator("article.user").first.locator("text=Edit").click()
    assert chat.locator(".rewrite").input_value() == "one"
    chat.fill(".rewrite", "uno")
    chat.press(".rewrite", "Enter")
    finished(chat)
    assert chat.locator("article").count() == 2
    assert mock.requests[-1]["messages"] == [{"role": "user", "content": "uno"}]


def test_edit_can_be_left(mock, chat):
    ask(chat, "one")
    finished(chat)
    chat.press("#input", "ArrowUp")
    chat.fill(".rewrite", "other")
    chat.press(".rewrite", "Escape")
    assert chat.locator(".user .said").inner_text() == "one" and len(mock.requests) == 1


def test_enter_sends_and_shift_enter_does_not(mock, chat):
    chat.fill("#input", "a")
    chat.press("#input", "Shift+Enter")
    chat.keyboard.type("b")
    assert not mock.requests
    chat.press("#input", "Enter")
    finished(chat)
    assert mock.requests[0]["messages"][0]["content"] == "a\nb"


def test_settings_are_sent_and_kept(mock, chat):
    chat.click("#settings")
    values = {"temperature": "0.7", "top_p": "0.95", "top_k": "40", "min_p": "0.05", "max_completion_tokens": "12", "seed": "7"}
    for name, value in values.items():
        chat.fill("#" + name, value)
    chat.fill("#system", "Be brief.")
    chat.fill("#stop", "END\n\\n\\n")
    chat.select_option("#reasoning_effort", "low")
    chat.reload()
    ask(ready_chat(chat), "x")
    finished(chat)
    body = mock.requests[0]
    assert {name: body[name] for name in values} == {name: json.loads(value) for name, value in values.items()}
    assert body["stop"] == ["END", "\n\n"] and body["reasoning_effort"] == "low"
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_settings_out_of_range_are_named_and_not_sent(mock, chat):
    chat.click("#settings")
    for name, value in [("temperature", "2.5"), ("temperature", "-1"), ("top_p", "0"), ("top_k", "1.5"), ("min_p", "2"), ("max_completion_tokens", "0")]:
        chat.fill("#" + name, value)
        ask(chat, "x")
        assert value in chat.locator("#toast-text").inner_text(), name
        assert "wrong" in chat.locator("#" + name).get_attribute("class") and not mock.requests
        chat.fill("#" + name, "")


# FC-064: the name and the first arguments in one step, then a step that closes one call and opens the next.
def test_FC064_tool_calls_are_put_together_and_answered(mock, chat):
    call = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "tide", "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": ": \"Brest\"}"}}, {"index": 1, "id": "call_b", "type": "function", "function": {"name": "moon", "arguments": "{}"}}]
    mock.stream = [ROLE, chunk({"tool_calls": [call]}), chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{\"port\""}}]}),
                   chunk({"tool_calls": rest}), chunk({}, "tool_calls"), DONE]
    tool = {"type": "function", "function": {"name": "tide"}}
    chat.click("#settings")
    chat.fill("#tools", json.dumps([tool]))
    chat.click("#close")
    ask(chat, "When is high tide?")
    answer = finished(chat)
    assert mock.requests[0]["tools"] == [tool]
    assert answer.locator("summary:visible").all_inner_texts() == ["Calls tide", "Calls moon"]
    assert json.loads(answer.locator(".call pre").first.inner_text()) == {"port": "Brest"}
    mock.stream = said("At noon.")
    chat.fill("[aria-label='Result of tide']", "12:00")
    chat.fill("[aria-label='Result of moon']", "full")
    chat.click("text=Send results")
    chat.wait_for_selector("text=At noon.")
    sent = mock.requests[1]["messages"]
    assert sent[1] == {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_a", "type": "function", "function": {"name": "tide", "arguments": "{\"port\": \"Brest\"}"}},
        {"id": "call_b", "type": "function", "function": {"name": "moon", "arguments": "{}"}}]}
    assert sent[2:] == [{"role": "tool", "tool_call_id": "call_a", "content": "12:00"}, {"role": "tool", "tool_call_id": "call_b", "content": "full"}]


def test_refusals_are_shown_and_can_be_tried_again(mock, chat):
    mock.stream = error(429, "the queue is full (64 requests); try again", "queue_full")
    ask(chat, "x")
    assert "the queue is full" in finished(chat).locator("[role=alert]").inner_text()
    mock.stream = said("Now.")
    chat.click("text=Try again")
    chat.wait_for_selector("article >> text=Now.")
    assert chat.locator("article").count() == 2 and mock.requests[1]["messages"] == [{"role": "user", "content": "x"}]


def test_error_in_the_stream_keeps_what_came(mock, chat):
    mock.stream = [ROLE, chunk({"content": "Half an"}), frame({"error": {"message": "the device was lost", "type": "server_error"}}), DONE]
    ask(chat, "x")
    text = finished(chat).inner_text()
    assert "Half an" in text and "the device was lost" in text


def test_broken_streams_are_named(mock, chat):
    for tail, words in [([0.2, "break"], "could not be reached"), ([], "ended before the answer did"), ([b"data: {oops\n\n"], "not JSON")]:
        mock.stream = [ROLE, chunk({"content": "Half"}), *tail]
        ask(chat, "x")
        text = finished(chat).inner_text()
        assert "Half" in text and words in text, words


def test_foreign_error_page(mock, chat):
    mock.stream = (502, b"<html>Bad gateway</html>")
    ask(chat, "x")
    assert "answered 502" in finished(chat).inner_text()


def test_length_is_told(mock, chat):
    mock.stream = said("and then", finish="length")
    ask(chat, "x")
    assert "token limit" in finished(chat).inner_text()


def test_loading_is_shown_until_ready(mock, open_page):
    mock.not_ready = error(503, "Loading model; try again in a moment", "not_ready", details={"loaded_bytes": 3 << 30, "total_bytes": 12 << 30})
    page = open_page(mock.url)
    page.wait_for_selector("#banner >> text=3.0 of 12.0 GiB, 25 %")
    page.fill("#input", "x")
    assert page.locator("#send").is_disabled() and page.locator("progress").get_attribute("value") == str(3 << 30)
    mock.not_ready = None
    ready_chat(page)
    assert not page.locator("#banner").is_visible() and page.locator("#send").is_enabled()


def test_draining_and_unreachable_are_told_apart(mock, open_page):
    mock.not_ready = error(503, "the server is shutting down; ask another one", "not_ready")
    page = open_page(mock.url)
    page.wait_for_selector("#banner >> text=shutting down")
    mock.close()
    page.wait_for_selector("#banner >> text=cannot be reached")
    assert page.locator("#status").get_attribute("data-state") == "down"


def test_api_key_is_asked_for_and_forgotten_with_the_tab(mock, open_page):
    mock.key = "sesame"
    page = open_page(mock.url)
    page.wait_for_selector("#key-dialog[open] >> text=This server asks for a key")
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("#key-dialog[open] >> text=Invalid API key")
    page.fill("#key", "sesame")
    page.click("#key-save")
    page.wait_for_selector("#model option", state="attached")
    ask(page, "x")
    assert finished(page).locator(".answer").inner_text() == "Hello."
    assert "sesame" not in page.evaluate("JSON.stringify(localStorage)") and "sesame" in page.evaluate("JSON.stringify(sessionStorage)")


def test_conversation_is_kept_cleared_and_brought_back(mock, chat):
    ask(chat, "Remember me")
    finished(chat)
    chat.reload()
    assert chat.locator("article").count() == 2
    ready_chat(chat).click("#new")
    assert chat.locator("article").count() == 0 and chat.locator("#welcome").is_visible()
    chat.click("#undo")
    assert chat.locator("article").count() == 2
    chat.click("#new")
    chat.reload()
    assert chat.locator("article").count() == 0


def test_reload_in_the_middle_keeps_what_came(mock, chat):
    mock.stream = [ROLE, chunk({"content": "Half"}), 3, DONE]
    ask(chat, "x")
    chat.wait_for_selector("article >> text=Half")
    chat.reload()
    assert chat.locator("article .answer").last.inner_text() == "Half"


def test_exports(mock, chat):
    ask(chat, "Hi")
    finished(chat)
    chat.click("#settings")
    with chat.expect_download() as download:
        chat.click("#export-json")
    messages = json.loads(download.value.path().read_text())["messages"]
    assert messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    with chat.expect_download() as download:
        chat.click("#export-md")
    assert download.value.path().read_text() == "## You\n\nHi\n\n## mock\n\nHello.\n"


def test_damaged_storage_is_no_obstacle(mock, chat):
    chat.evaluate("localStorage.setItem('moesaic.chat', '{broken'); localStorage.setItem('moesaic.settings', 'x')")
    page = chat.context.new_page()
    page.goto(mock.url)
    ask(ready_chat(page), "x")
    assert finished(page).locator(".answer").inner_text() == "Hello."


def test_copying_a_message_and_a_block(mock, chat):
    chat.context.grant_permissions(["clipboard-read", "clipboard-write"])
    mock.stream = said("Run:\n\n```sh\nls -l\n  pwd\n```\n")
    ask(chat, "x")
    finished(chat).locator("figcaption button").click()
    chat.wait_for_selector("text=Copied")
    assert chat.evaluate("navigator.clipboard.readText()") == "ls -l\n  pwd"
    finished(chat).locator(".acts >> text=Copy").click()
    chat.wait_for_selector(".acts >> text=Copied")
    assert chat.evaluate("navigator.clipboard.readText()").startswith("Run:")


def test_images_only_where_the_model_sees(mock, chat):
    assert not chat.locator("#attach").is_visible()
    mock.capabilities = {"vision": True, "tools": False, "reasoning": False}
    chat.reload()
    ready_chat(chat)
    dot = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082")
    chat.set_input_files("#files", [{"name": "dot.png", "mimeType": "image/png", "buffer": dot}, {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"}])
    chat.wait_for_selector("#attached img")
    assert "a.txt" in chat.locator("#toast-text").inner_text()
    ask(chat, "What is this?")
    finished(chat)
    image, text = mock.requests[0]["messages"][0]["content"]
    assert image["type"] == "image_url" and image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "What is this?"}
    assert chat.locator(".user img").count() == 1 and not chat.locator("#attached").is_visible()


def test_models_can_be_chosen(mock, chat):
    mock.models = ["one", "two"]
    chat.reload()
    ready_chat(chat).select_option("#model", "two")
    chat.reload()
    ask(ready_chat(chat), "x")
    finished(chat)
    assert mock.requests[0]["model"] == "two"
