"""Tools, structured output and the responses API through the official client."""
import json
import re
import typing

import pydantic
import pytest

ASK = [{"role": "user", "content": "Where is the fox?"}]
PLACE = {"type": "object", "properties": {"place": {"enum": ["wood", "house"]}, "near": {"type": "boolean"}},
         "required": ["place", "near"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "description": "Looks.", "parameters": PLACE}}
         for name in ("look_up", "walk_to")]


def chat(client, **fields):
    return client.chat.completions.create(
        **{"model": "demo", "messages": ASK, "max_completion_tokens": 200, "temperature": 0} | fields)


def check_place(text):
    value = json.loads(text)
    assert value.keys() == {"place", "near"} and value["place"] in ("wood", "house") and type(value["near"]) is bool


def test_tools_auto_answers(client):
    choice = chat(client, tools=TOOLS).choices[0]
    assert choice.finish_reason in ("stop", "tool_calls", "length")
    assert choice.message.content or choice.message.tool_calls


def test_tools_none_calls_nothing(client):
    assert chat(client, tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None


def test_tools_required(client):
    choice = chat(client, tools=TOOLS, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    for call in choice.message.tool_calls:
        assert call.type == "function" and call.id and call.function.name in ("look_up", "walk_to")
        check_place(call.function.arguments)


@pytest.mark.parametrize("name", ["look_up", "walk_to"])
def test_tools_named(client, name):
    choice = chat(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}}).choices[0]
    assert choice.finish_reason == "stop"  # as OpenAI has it for a named tool
    assert [call.function.name for call in choice.message.tool_calls] == [name]
    check_place(choice.message.tool_calls[0].function.arguments)


def test_parallel_tool_calls_off(client):
    choice = chat(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert len(choice.message.tool_calls) == 1


def test_tool_result_goes_back(client):
    call = chat(client, tools=TOOLS, tool_choice="required").choices[0].message.tool_calls[0]
    answer = chat(client, tools=TOOLS, messages=[
        *ASK, {"role": "assistant", "content": None, "tool_calls": [call.to_dict()]},
        {"role": "tool", "tool_call_id": call.id, "content": "It is in the wood."}])
    assert answer.choices[0].finish_reason


@pytest.mark.parametrize("seed", range(6))
def test_FC063_FC064_streamed_calls_equal_those_of_the_answer(client, seed):
    fields = dict(tools=TOOLS, tool_choice="required", temperature=1.0, seed=seed)
    whole = chat(client, **fields).choices[0]
    calls = {}
    for chunk in chat(client, stream=True, **fields):
        for part in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            if part.index not in calls:
                assert part.id and part.type == "function" and part.function.name
                calls[part.index] = [part.function.name, part.function.arguments or ""]
            else:  # id, type and name come once
                assert part.id is None and part.type is None and part.function.name is None
                calls[part.index][1] += part.function.arguments
        if chunk.choices and chunk.choices[0].finish_reason:
            assert chunk.choices[0].finish_reason == whole.finish_reason
    assert sorted(calls) == list(range(len(calls)))
    assert [tuple(calls[i]) for i in sorted(calls)] == [(c.function.name, c.function.arguments)
                                                        for c in whole.message.tool_calls]
    for _, arguments in calls.values():
        assert arguments.startswith("{")
        check_place(arguments)


def test_stream_helper_collects_calls(client):
    with client.chat.completions.stream(model="demo", messages=ASK, tools=TOOLS, tool_choice="required", temperature=0,
                                        max_completion_tokens=200) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    check_place(final.choices[0].message.tool_calls[0].function.arguments)


def test_json_object(client):
    choice = chat(client, response_format={"type": "json_object"}, max_completion_tokens=300).choices[0]
    if choice.finish_reason == "stop":  # a small model may ramble inside a string until its tokens end
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.finish_reason == "length" and choice.message.content.lstrip().startswith("{")


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_json_schema(client, temperature):
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}
    for seed in range(4):
        choice = chat(client, response_format=form, temperature=temperature, seed=seed).choices[0]
        assert choice.finish_reason == "stop"
        check_place(choice.message.content)


def test_parse_into_pydantic(client):
    class Place(pydantic.BaseModel):
        place: typing.Literal["wood", "house"]
        near: bool

    message = client.chat.completions.parse(model="demo", messages=ASK, response_format=Place, temperature=0,
                                            max_completion_tokens=200).choices[0].message
    assert isinstance(message.parsed, Place)


@pytest.mark.parametrize("constraint,pattern", [
    ({"choice": ["wolf", "owl"]}, r"wolf|owl"), ({"regex": "[a-c]{3}-[0-9]{2}"}, r"[a-c]{3}-[0-9]{2}")])
def test_structured_outputs_of_vllm(client, constraint, pattern):
    answer = client.completions.create(model="demo", prompt="Say:", temperature=1.0, seed=1, max_tokens=32,
                                       extra_body={"structured_outputs": constraint})
    assert answer.choices[0].finish_reason == "stop" and re.fullmatch(pattern, answer.choices[0].text)


def test_responses(client):
    answer = client.responses.create(model="demo", input="Tell me about a fox.", max_output_tokens=16, temperature=0)
    assert answer.object == "response" and answer.id.startswith("resp_")
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text and answer.usage.output_tokens == 16


def test_responses_complete(client):
    answer = client.responses.create(model="demo", input=[{"role": "user", "content": "Hello!"}], temperature=0,
                                     instructions="Be kind.", max_output_tokens=512)
    assert answer.status == "completed" and answer.output[-1].type == "message"


def test_responses_stream(client):
    whole = client.responses.create(model="demo", input="Tell me about a fox.", max_output_tokens=16, temperature=0)
    events = list(client.responses.create(model="demo", input="Tell me about a fox.", max_output_tokens=16,
                                          temperature=0, stream=True))
    kinds = [e.type for e in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.incomplete"
    assert [e.sequence_number for e in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text


def test_responses_tools(client):
    tool = {"type": "function", "name": "look_up", "parameters": PLACE, "strict": True}
    answer = client.responses.create(model="demo", input="Where?", tools=[tool], tool_choice="required", temperature=0,
                                     max_output_tokens=200)
    call = next(item for item in answer.output if item.type == "function_call")
    assert call.name == "look_up" and call.call_id
    check_place(call.arguments)


def test_responses_schema(client):
    form = {"format": {"type": "json_schema", "name": "place", "schema": PLACE, "strict": True}}
    answer = client.responses.create(model="demo", input="Where?", text=form, temperature=0, max_output_tokens=200)
    check_place(answer.output_text)
