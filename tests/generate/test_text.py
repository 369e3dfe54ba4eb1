"""Tokens, chat templates and streams against transformers' own tokenizers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import CORPUS, KINDS, TEMPLATE, text_files
from tokenizers.processors import TemplateProcessing

from qeff.core.errors import ContainerError, RequestError
from qeff.generate import Text
from qeff.generate.detokenize import Detokenizer

SAMPLES = [
    *CORPUS,
    "",
    " ",
    "  leading",
    "trailing  ",
    "日本語 🙂👩‍👩‍👧 z̷a",
    "a<s>b</s> c <|im_end|> d",
]
CHAT = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": "Grüße <b> & 'x' 🙂"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "the world"},
]
TEXTS = {kind: Text(text_files(make())) for kind, make in KINDS.items()}


class Files:
    """Something that has text files by name, as a container does."""

    def __init__(self, files):
        self.files = files

    def text_files(self):
        return self.files


def reference(files, folder):
    transformers = pytest.importorskip("transformers")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [{}, {"add_bos_token": False}, {"add_bos_token": True}])
def test_encode_and_decode_are_those_of_transformers(kind, config, tmp_path):
    tokenizer = KINDS[kind]()
    if config.get("add_bos_token"):
        mark = ("<s>", tokenizer.token_to_id("<s>"))
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[mark])
    files = text_files(tokenizer, **config)
    text, theirs = Text.from_container(Files(files)), reference(files, tmp_path)
    for sample in SAMPLES:
        ids = text.encode(sample)
        assert ids == theirs(sample)["input_ids"]
        plain = text.encode(sample, add_special_tokens=False)
        assert plain == theirs(sample, add_special_tokens=False)["input_ids"]
        assert text.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert text.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    assert text.bos_id == theirs.bos_token_id
    assert text.eos_ids == {theirs.eos_token_id}
    assert text.vocab_size == len(theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_config_adds_a_first_token_that_tokenizer_json_does_not(kind):
    plain, text = TEXTS[kind], Text(text_files(KINDS[kind](), add_bos_token=True))
    assert text.encode("the") == [text.bos_id, *plain.encode("the")]
    assert text.encode("") == [text.bos_id]
    assert text.encode("<s>the").count(text.bos_id) == 1
    assert text.encode("the", add_special_tokens=False) == plain.encode("the")


@pytest.mark.parametrize("kind", KINDS)
def test_chat_is_that_of_transformers(kind, tmp_path):
    files = text_files(KINDS[kind](), add_bos_token=True)
    text, theirs = Text(files), reference(files, tmp_path)
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>"}}]
    for options in ({}, {"tools": tools}, {"add_generation_prompt": False}):
        expected = theirs.apply_chat_template(
            CHAT, **{"add_generation_prompt": True, **options}, mood="glad", return_dict=False
        )
        assert text.encode_chat(CHAT, variables={"mood": "glad"}, **options) == expected
    assert text.has_chat_template


def test_templates_in_the_tokenizer_config():
    files = text_files(KINDS["byte_level"]())
    del files["chat_template.jinja"]
    config = json.loads(files["tokenizer_config.json"])
    assert not Text(files).has_chat_template
    with pytest.raises(RequestError, match="no chat template") as caught:
        Text(files).encode_chat(CHAT)
    assert "--chat" in caught.value.hint

    def with_template(declared):
        data = json.dumps({**config, "chat_template": declared}).encode()
        return Text({**files, "tokenizer_config.json": data})

    expected = TEXTS["byte_level"].encode_chat(CHAT)
    assert with_template(TEMPLATE).encode_chat(CHAT) == expected
    named = with_template(
        [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": "tool"}]
    )
    assert named.encode_chat(CHAT) == expected
    assert named.decode(named.encode_chat(CHAT, tools=[{"name": "f"}])) == "tool"
    assert with_template({"default": TEMPLATE}).encode_chat(CHAT) == expected
    for declared in (5, ["text"], [{"name": "default"}], {"default": 5}):
        assert not with_template(declared).has_chat_template
    marked = with_template("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c")
    assert marked.decode(marked.encode_chat(CHAT)) == "absystemc"
    with pytest.raises(RequestError, match="cannot be read"):
        with_template("{% if %}").encode_chat(CHAT)
    for source in (
        "{{ messages.__class__.__mro__ }}{{ messages.append(1) }}",
        "{{ 1 // 0 }}",
        "{% for n in range(10 ** 9) %}{{ n }}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ):
        with pytest.raises(RequestError, match="refuses the messages"):
            with_template(source).encode_chat(CHAT)
    assert not with_template("{{ messages[0].tools_used }}").knows_tools
    assert with_template("{% if tools %}x{% endif %}").knows_tools


def test_messages_that_cannot_be_rendered():
    text = TEXTS["byte_level"]
    for messages, match in (
        ([], "empty"),
        (["hello"], "needs a role"),
        ([{"content": "x"}], "needs a role"),
        ([{"role": "tool", "content": "x"}], "no tools <here>"),
        ([{"role": "user"}], "refuses"),
        ([{"role": "user", "content": object()}], "no JSON value"),
    ):
        with pytest.raises(RequestError, match=match):
            text.encode_chat(messages)


def test_ends_of_text():
    files = text_files(KINDS["byte_level"]())

    def ends(**more):
        return Text({**files, **{f"{k}.json": json.dumps(v).encode() for k, v in more.items()}})

    own = ends().eos_ids
    assert ends(generation_config={"eos_token_id": [3, 0]}).eos_ids == {3, 0} | own
    assert ends(generation_config={"eos_token_id": 3}).eos_ids == {3} | own
    assert ends(generation_config={"eos_token_id": None}).eos_ids == own
    assert ends(config={"eos_token_id": 3}).eos_ids == own
    plain = {"tokenizer.json": files["tokenizer.json"], "config.json": b'{"eos_token_id": [2]}'}
    assert Text(plain).eos_ids == {2}
    assert Text({"tokenizer.json": files["tokenizer.json"]}).eos_ids == frozenset()
    mapped = Text({**plain, "special_tokens_map.json": b'{"eos_token": "<|im_end|>"}'})
    assert mapped.eos_ids == {mapped.tokenizer.token_to_id("<|im_end|>")}


def test_missing_and_broken_files():
    with pytest.raises(ContainerError, match=r"no tokenizer\.json"):
        Text.from_container(Files({}))
    good = text_files(KINDS["byte_level"]())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        for bad in (b"{", b"\xff\xfe\x00", b"[1]"):
            with pytest.raises(ContainerError, match=name):
                Text({**good, name: bad})
    with pytest.raises(ContainerError, match=r"tokenizer\.json describes no tokenizer"):
        Text({**good, "tokenizer.json": b'{"a": 1}'})


UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
WORDS = st.text(st.sampled_from("the w\n\t  lé🙂日<"), max_size=60)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(sample=UNICODE | WORDS, cuts=st.lists(st.integers(1, 5), max_size=60))
def test_joined_pieces_are_the_whole_text(kind, sample, cuts):
    text = TEXTS[kind]
    ids = text.encode(sample)
    whole = text.decode(ids)
    stream, pieces, place = text.detokenizer(), [], 0
    for cut in [*cuts, *[1] * len(ids)]:
        pieces.append(stream.push(ids[place : place + cut]))
        place += cut
        assert whole.startswith("".join(pieces))  # nothing given is ever taken back
        if "\ufffd" not in sample:
            assert "\ufffd" not in pieces[-1]
    pieces.append(stream.flush())
    assert "".join(pieces) == whole
    assert stream.flush() == ""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(sample=UNICODE | WORDS, share=st.floats(0, 1))
def test_text_after_a_prompt_keeps_its_spaces(kind, sample, share):
    text = TEXTS[kind]
    ids = text.encode("the " + sample)
    place = max(1, int(share * len(ids)))
    prompt = text.decode(ids[:place])
    if "\ufffd" in prompt[-1:]:  # the cut is inside a character
        return
    stream = text.detokenizer(context=ids[:place])
    pieces = [stream.push([token]) for token in ids[place:]]
    assert prompt + "".join(pieces) + stream.flush() == text.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_tokens_end_in_some_text(kind, data):
    text = TEXTS[kind]
    ids = data.draw(st.lists(st.integers(0, text.vocab_size - 1), max_size=60))
    stream = text.detokenizer()
    joined = "".join(stream.push([token]) for token in ids) + stream.flush()
    if kind == "byte_level":  # a byte run of the other kind is decoded as a whole or not at all
        assert joined == text.decode(ids)
    assert len(joined) <= 8 * len(ids) + 8


def test_half_a_character_waits():
    for text in TEXTS.values():
        ids = text.encode("a🙂b")
        stream = text.detokenizer()
        pieces = [stream.push([token]) for token in ids]
        assert "".join(pieces) == "a🙂b"
        assert len([piece for piece in pieces if piece]) == 3  # a, then the whole emoji, then b
        stream = text.detokenizer()
        cut = text.encode("a🙂")[:-1]
        assert "".join(stream.push([token]) for token in cut) == "a"
        assert set(stream.flush()) == {"\ufffd"}


def test_special_tokens_between_words_drop_no_space():
    text = TEXTS["metaspace"]
    word, mark = text.encode("the", add_special_tokens=False), text.tokenizer.token_to_id("<s>")
    ids = [*word, mark, *word, mark, mark, *word] * 6
    stream = text.detokenizer()
    joined = "".join(stream.push([token]) for token in ids) + stream.flush()
    assert joined == text.decode(ids) == " ".join(["the"] * 18)


def test_tokens_without_text_do_not_eat_the_next_space():
    words = ["", " a"]

    def decode(ids):
        return "".join(words[index] for index in ids).removeprefix(" ")

    ids = [1, *[0] * 20, 1, *[0] * 7, 1, 1, *[1] * 20]
    stream = Detokenizer(decode)
    assert "".join(stream.push([index]) for index in ids) == decode(ids)


@pytest.mark.parametrize("prompt", ["caf\udcff", "\ud800" + "a" * 5000, 5, None, b"bytes"])
def test_a_prompt_that_is_no_text_is_refused(prompt):
    with pytest.raises(RequestError, match="must be text of whole characters"):
        TEXTS["byte_level"].encode(prompt)
