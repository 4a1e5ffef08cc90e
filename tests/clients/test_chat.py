"""Chat and completions through the official client."""
import openai
import pytest

FOX = [{"role": "user", "content": "Tell me a story about a little fox."}]


def chat(client, **fields):
    return client.chat.completions.create(
        **{"model": "demo", "messages": FOX, "max_completion_tokens": 24, "temperature": 0} | fields)


def joined(chunks, index=0):
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index)


def test_models(client):
    models = client.models.list().data
    assert models[0].id and models[0].object == "model"
    assert client.models.retrieve(models[0].id).id == models[0].id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_chat(client):
    answer = chat(client)
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == "demo"
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.message.tool_calls is None and "tool_calls" not in choice.message.to_dict()
    assert choice.finish_reason == "length" and answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_chat_ends_by_itself(client):
    answer = chat(client, messages=[{"role": "user", "content": "Hello!"}], max_completion_tokens=512)
    assert answer.choices[0].finish_reason == "stop"
    assert "<|" not in answer.choices[0].message.content


def test_stream_equals_answer(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == whole.choices[0].message.content
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]


def test_stream_helper(client):
    fields = dict(messages=[{"role": "user", "content": "Hello!"}], max_completion_tokens=512, temperature=0)
    with client.chat.completions.stream(model="demo", **fields) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == chat(client, **fields).choices[0].message.content


def test_stream_helper_tells_of_the_limit(client):
    with client.chat.completions.stream(model="demo", messages=FOX, max_completion_tokens=24, temperature=0) as stream:
        with pytest.raises(openai.LengthFinishReasonError) as cut:
            for _ in stream:
                pass
            stream.get_final_completion()
    assert cut.value.completion.choices[0].message.content == chat(client).choices[0].message.content


def test_several_turns(client):
    answer = chat(client, messages=[{"role": "system", "content": "You are kind."}, *FOX,
                                    {"role": "assistant", "content": "Once there was a fox."},
                                    {"role": "user", "content": [{"type": "text", "text": "Go on."}]}])
    assert answer.choices[0].message.content


def test_n(client):
    answer = chat(client, n=3, temperature=0.9, seed=5)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) > 1
    assert answer.usage.completion_tokens == sum([24] * 3)


def test_seed(client):
    first, again, other = (chat(client, temperature=0.9, seed=s).choices[0].message.content for s in (7, 7, 8))
    assert first == again != other


def test_stop(client):
    whole = chat(client).choices[0].message.content
    stop = whole[8:14]
    answer = chat(client, stop=[stop]).choices[0]
    assert answer.finish_reason == "stop" and answer.message.content == whole[:whole.index(stop)]
    assert answer.stop_reason == stop


def test_logprobs(client):
    answer = chat(client, logprobs=True, top_logprobs=3, max_completion_tokens=12)
    content = answer.choices[0].logprobs.content
    visible = b"".join(bytes(t.bytes) for t in content).decode()
    assert answer.choices[0].message.content == visible
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob >= token.top_logprobs[2].logprob
        assert token.top_logprobs[0].token == token.token  # greedy


def test_stream_logprobs_equal_those_of_the_answer(client):
    fields = dict(logprobs=True, top_logprobs=1, max_completion_tokens=12)
    whole = [t.logprob for t in chat(client, **fields).choices[0].logprobs.content]
    parts = [t.logprob for chunk in chat(client, stream=True, **fields) for c in chunk.choices
             if c.logprobs for t in c.logprobs.content or []]
    assert parts == pytest.approx(whole, abs=1e-4)


def test_logit_bias(client, server):
    token = server.tokens(" the")[0]
    answer = server.complete("Once upon a time", max_tokens=8, logit_bias={str(token): 100})
    assert answer["choices"][0]["text"] == " the" * 8


def test_completions(client):
    answer = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=8, temperature=0)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    chunks = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == answer.choices[0].text


def test_completions_of_several_prompts(client, server):
    ids = server.tokens("The fox")
    answer = client.completions.create(model="demo", prompt=["Once upon a time", "The fox"], n=2, max_tokens=4,
                                       temperature=0)
    texts = [c.text for c in answer.choices]
    assert [c.index for c in answer.choices] == [0, 1, 2, 3] and texts[0] == texts[1] and texts[2] == texts[3]
    assert ids  # text and its tokens are the same prompt
    bos = client.completions.create(model="demo", prompt="The fox", max_tokens=4, temperature=0).choices[0].text
    assert texts[2] == bos


def test_completions_echo_and_logprobs(client):
    answer = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=3, echo=True, logprobs=2,
                                       temperature=0)
    choice = answer.choices[0]
    assert choice.text.startswith("Once upon a time")
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None and all(v <= 0 for v in choice.logprobs.token_logprobs[1:])
    assert len(choice.logprobs.text_offset) == len(choice.logprobs.tokens)


def test_prefix_is_cached(client):
    text = "Once there was a bear who lived in the wood near the old mill. " * 10
    asked = [{"role": "user", "content": text}]
    first, second = (chat(client, messages=asked, max_completion_tokens=2) for _ in range(2))
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens_details.cached_tokens
    assert second.choices[0].message.content == first.choices[0].message.content
