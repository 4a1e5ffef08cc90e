"""Bad requests: status, shape and the official client's exception for each."""
import json

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nothing"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def check_error(answer, status, code=None, param=None):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/json") and answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"} and isinstance(error["message"], str) and error["message"]
    assert "Traceback" not in answer.text and ".cc" not in answer.text
    if code:
        assert error["code"] == code, error
    if param:
        assert error["param"] == param, error
    return error


# Field, value, code; the parameter named is the field unless a fourth says otherwise.
BAD_FIELDS = [
    ("temperature", -0.1, "invalid_value"), ("temperature", 2.1, "invalid_value"), ("temperature", "hot", "invalid_type"),
    ("top_p", 0, "invalid_value"), ("top_p", 1.01, "invalid_value"), ("top_p", -1, "invalid_value"),
    ("min_p", -0.1, "invalid_value"), ("min_p", 1.1, "invalid_value"), ("top_k", -2, "invalid_value"),
    ("presence_penalty", 2.5, "invalid_value"), ("frequency_penalty", -2.5, "invalid_value"),
    ("repetition_penalty", 0, "invalid_value"), ("n", 0, "invalid_value"), ("n", 99, "invalid_value"),
    ("max_tokens", 0, "invalid_value"), ("max_completion_tokens", -1, "invalid_value"),
    ("max_completion_tokens", "many", "invalid_type"), ("stop", [""], "invalid_value"), ("stop", ["x"] * 17, "invalid_value"),
    ("stop", 3, "invalid_type"), ("stream", "yes", "invalid_type"), ("logprobs", 3, "invalid_type"),
    ("stream_options", {"include_usage": True}, "invalid_value"), ("top_logprobs", 2, "invalid_value"),
    ("tools", [], "empty_array"), ("tools", "f", "invalid_type"), ("tool_choice", "required", "invalid_value"),
    ("response_format", {"type": "json_schema"}, "missing_required_parameter"),
    ("response_format", {"type": "poem"}, "invalid_value"),
    ("response_format", JSON_SCHEMA, "invalid_schema"), ("messages", [], "invalid_value"),
    ("messages", "hi", "invalid_type"), ("seed", "x", "invalid_type"), ("min_tokens", -1, "invalid_value"),
]
# Fields whose parameter is a path below the field.
DEEPER = {"response_format", "stream_options", "stop"}


@pytest.mark.parametrize("field,value,code", BAD_FIELDS, ids=lambda v: json.dumps(v)[:32])
def test_bad_field(server, field, value, code):
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4} | {field: value})
    error = check_error(answer, 400, code)
    assert error["param"] == field or field in DEEPER and error["param"].startswith(field), error


@pytest.mark.parametrize("field,value", [
    ("temperature", 0), ("temperature", 2), ("top_p", 1), ("top_p", 1e-6), ("min_p", 0), ("min_p", 1), ("top_k", -1),
    ("top_k", 0), ("top_k", 1), ("presence_penalty", 2), ("frequency_penalty", -2), ("n", 8), ("seed", -1),
    ("stop", ["x"] * 16), ("stop", "zzz"), ("stop", None), ("max_completion_tokens", 1), ("tools", None),
    ("response_format", {"type": "text"}), ("user", "u"), ("metadata", {"a": "b"}), ("service_tier", "auto"),
    ("no_such_field", {"x": [1]}), ("logit_bias", None), ("reasoning_effort", "low")], ids=lambda v: json.dumps(v)[:32])
def test_good_field(server, field, value):
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": 2} | {field: value})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("messages,param", [
    ([{"role": "king", "content": "x"}], "messages[0]"), ([{"content": "x"}], "messages[0]"),
    ([{"role": "assistant"}], "messages[0]"), ([*MESSAGES, {"role": "tool", "content": "x"}], "messages[1]"),
    ([{"role": "user", "content": 3}], "messages[0]"), ([{"role": "user", "content": None}], "messages[0]"),
    ([{"role": "user", "content": [{"type": "dance"}]}], "messages[0]"), ([3], "messages[0]")],
    ids=lambda v: json.dumps(v)[:40])
def test_bad_message(server, messages, param):
    error = check_error(server.post("/v1/chat/completions", {"messages": messages}), 400)
    assert error["param"].startswith(param), error


def test_FC038_a_model_without_eyes_refuses_images(server):
    content = [{"type": "text", "text": "What is this?"}, IMAGE]
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    check_error(answer, 400, "unsupported_content_type", "messages[0].content[1]")


def test_missing_fields(server):
    check_error(server.post("/v1/chat/completions", {}), 400, "missing_required_parameter", "messages")
    check_error(server.post("/v1/completions", {}), 400, "missing_required_parameter", "prompt")


def test_paths_and_methods(server):
    check_error(server.get("/v1/nothing"), 404)
    check_error(server.post("/v1/embeddings", {"input": "x"}), 404, "unsupported_endpoint")
    wrong = server.get("/v1/chat/completions")
    check_error(wrong, 405)
    assert "POST" in wrong.headers["allow"]


def test_request_ids_are_echoed(server):
    answer = server.get("/v1/models", headers={"X-Request-Id": "abc-123"})
    assert answer.headers["x-request-id"] == "abc-123"


def test_client_errors(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="demo", messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature" and bad.value.code == "invalid_value" and bad.value.request_id
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert unknown.value.code == "model_not_found" and unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "fox " * 3000}])
    assert long.value.code == "context_length_exceeded" and "maximum context length is 2048 tokens" in str(long.value)
    with pytest.raises(openai.BadRequestError):  # the stream never starts
        client.chat.completions.create(model="demo", messages=MESSAGES, stream=True, top_p=7)


def test_keys(own_server):
    server = own_server("--api-key", "first", "--api-key", "second")
    for key in ("first", "second"):
        assert openai.OpenAI(base_url=server.url + "/v1", api_key=key).models.list().data
    with pytest.raises(openai.AuthenticationError) as refused:
        openai.OpenAI(base_url=server.url + "/v1", api_key="third", max_retries=0).models.list()
    assert refused.value.code == "invalid_api_key" and refused.value.type == "authentication_error"
    assert server.get("/v1/models", headers={"x-api-key": "second"}).status_code == 200
    assert server.get("/v1/models").status_code == 401 and server.get("/v1/models").headers["www-authenticate"]
    assert server.get("/health").status_code == 200 and server.get("/metrics").status_code == 200


def test_bodies_that_are_too_large(own_server):
    server = own_server("--max-body-bytes", "1000")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x" * 2000}])
    assert refused.value.status_code == 413


def test_a_full_queue(own_server):
    server = own_server("--max-num-seqs", "1", "--max-queue", "1")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    streams = []
    with pytest.raises(openai.RateLimitError) as refused:
        for _ in range(6):
            streams.append(client.completions.with_raw_response.create(
                model="demo", prompt="x", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}, timeout=2))
    assert refused.value.code == "queue_full" and refused.value.response.headers["retry-after"] == "1"
    for stream in streams:
        stream.http_response.close()
    server.wait_idle()
    assert client.completions.create(model="demo", prompt="x", max_tokens=2).choices[0].finish_reason == "length"
