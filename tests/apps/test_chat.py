"""The terminal chat, driven through a pipe: history, commands, fields, interrupts."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from pathlib import Path

import pytest

from qeff.apps.chat.conversation import Conversation
from qeff.apps.chat.settings import changed, shown
from qeff.apps.cli.main import main
from qeff.apps.terminal import chatting
from qeff.apps.terminal.chatting import Voice, interrupts
from qeff.apps.terminal.screen import Screen
from qeff.core.errors import QeffError
from qeff.generate import SamplingParams
from qeff.generate.fields import Answer, Field, Piece, ToolCall

ASK = ["--ctx-len", "192", "--precision", "fp32", "--max-tokens", "8", "--ignore-eos"]


@pytest.fixture
def talk(tiny, cache, monkeypatch, capsys):
    """Run a chat over some lines; its answers, what it said besides, and its exit code."""

    def run(lines: str, *words: str, model: str | None = None) -> tuple[str, str, int]:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        code = main(["chat", model or str(tiny), *(ASK if model is None else ()), *words])
        out, err = capsys.readouterr()
        return out, err, code

    return run


def reused(err: str) -> list[tuple[int, int]]:
    """Of each answer: how many tokens of its prompt were reused, and how many it has."""
    found = []
    for line in err.splitlines():
        if "time to first token" in line:
            match = re.search(r"(\d+) of (\d+) prompt tokens reused", line)
            found.append((int(match[1]), int(match[2])) if match else (0, 0))
    return found


def saved(path: Path) -> list[dict]:
    return json.loads(path.read_text())["messages"]


def test_answers_go_to_stdout_and_nothing_else(talk, tmp_path) -> None:
    out, err, code = talk(f"my name is\n\nonce upon a time\n/save {tmp_path / 'c.json'}\n")
    assert code == 0 and "> " not in out
    messages = saved(tmp_path / "c.json")
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert [m["content"] for m in messages[::2]] == ["my name is", "once upon a time"]
    assert out == f"{messages[1]['content']}\n{messages[3]['content']}\n"
    assert err.count("tokens/s") == 2 and "/help lists the commands" in err
    assert talk("my name is\n", "--quiet")[1] == ""


def test_the_next_turn_reuses_the_first_one(talk, tiny) -> None:
    from qeff.generate import Text

    question = "my name is the flat earth theory"
    _, err, _ = talk(f"{question}\nonce upon a time\n")
    (none, _), (count, total) = reused(err)
    files = {path.name: path.read_bytes() for path in tiny.iterdir()}
    first = len(Text(files).encode_chat([{"role": "user", "content": question}]))
    assert none == 0 and first <= count < total
    _, err, _ = talk(f"{question}\nonce upon a time\n", "--no-prefix-reuse")
    assert reused(err) == [(0, 0), (0, 0)]


def test_history_and_system_reach_the_model(talk, tmp_path) -> None:
    file = tmp_path / "c.json"
    plain, _, _ = talk("my name is\n")
    with_system, _, _ = talk("my name is\n", "--system", "the sun")
    assert with_system != plain
    assert talk("/system the sun\nmy name is\n")[0] == with_system
    assert talk("/system the sun\n/system\nmy name is\n")[0] == plain
    assert talk("once\n/clear\nmy name is\n")[0].splitlines()[-1] == plain.splitlines()[-1]
    out, _, _ = talk(f"/system the sun\nonce\n/save {file}\nmy name is\n")
    loaded, err, code = talk(f"/load {file}\nmy name is\n")
    assert code == 0 and out.endswith(loaded) and "loaded: 3 messages" in err
    assert [m["role"] for m in saved(file)] == ["system", "user", "assistant"]


def test_retry(talk, tmp_path) -> None:
    file = tmp_path / "c.json"
    out, err, _ = talk("my name is\n/retry\n")
    assert "temperature is 0: the answer will be the same" in err
    first, second = out[: len(out) // 2], out[len(out) // 2 :]
    assert first == second
    words = ["--temperature", "2", "--seed", "4"]
    out, _, _ = talk(f"my name is\n/retry\n/save {file}\n", *words)
    messages = saved(file)
    assert len(messages) == 2  # the answer was exchanged
    assert out.endswith(messages[1]["content"] + "\n")
    assert out != messages[1]["content"] * 2 and out.count(messages[1]["content"]) == 1
    _, err, code = talk("/retry\n")
    assert code == 1 and "there is no question to answer again" in err


def test_settings_are_changed_while_talking(talk) -> None:
    _, err, code = talk("/set max_tokens=3\nmy name\n/set\n/set top-k=5\n/set max_tokens=\n")
    assert code == 0 and "3 tokens, " in err
    assert "max_tokens=3, ignore_eos=True\n" in err and "max_tokens=3, top_k=5" in err
    assert "top_k=5, ignore_eos=True\n" in err


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("/sav x", "did you mean '/save'"),
        ("/save", "/save needs a file"),
        ("/load nowhere.json", "nowhere.json cannot be read"),
        ("/save no/such/folder.json", "cannot be written"),
        ("/set temperature", "is not NAME=VALUE"),
        ("/set temperatur=1", "did you mean 'temperature'"),
        ("/set temperature=hot", "temperature must be a number"),
        ("/set temperature=-1", "temperature must be at least 0"),
        ("/set n=2", "n is about several answers"),
        ("/tool 5", "the model has called no tool"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_the_chat_goes_on(talk, line, what) -> None:
    out, err, code = talk(f"{line}\nmy name is\n")
    assert code == 1 and what in err and out == talk("my name is\n")[0]


def test_a_full_context_is_said_clearly(talk, tmp_path) -> None:
    file = tmp_path / "c.json"
    long = "my name is " * 60
    _, err, code = talk(f"{long}\nmy name is\n/save {file}\n")
    assert code == 1 and "the context is full: the conversation has" in err and "/clear" in err
    assert saved(file)[0]["content"] == "my name is"  # the long one was taken back
    _, err, code = talk("/set max_tokens=\nmy name\n", "--ctx-len", "48")
    assert code == 0 and "the context is full: /clear starts over" in err


def test_other_ways_in(tiny, talk, capsys) -> None:
    plain, _, _ = talk("my name is\n")
    assert talk("my name is\n", "--speculation", "lookahead", "--no-adaptive")[0] == plain
    assert talk("my name is\n", "--draft-model", str(tiny), "--no-adaptive")[0] == plain
    assert talk("my name is\n", "--choice", "yes")[0] == "yes\n"
    assert main(["compile", "--model-name", str(tiny), *ASK[:4]]) == 0
    container = capsys.readouterr().out.strip()
    words = ("--max-tokens", "8", "--ignore-eos")
    assert talk("my name is\n", *words, model=container)[0] == plain
    for more, what in (
        (["--ctx-len", "64"], "--ctx-len is decided when a container is compiled"),
        (["--mxfp6"], "--mxfp6-matmul is decided when a container is compiled"),
        (["--batch-size", "2"], "--batch-size is decided when a container is compiled"),
        (["--model-name", "x"], "both name a model"),
        (["--n", "2", "--temperature", "1"], "a chat goes on from one"),
    ):
        _, err, code = talk("", *more, model=container)
        assert code == 2 and what in err
    assert talk("/exit\nmy name is\n")[0] == ""
    assert "Ctrl-C ends an answer" in talk("/help\n")[1]


def test_a_model_without_a_template(tiny, talk, tmp_path) -> None:
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(tiny, bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((bare / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    _, err, code = talk("x\n", *ASK, model=str(bare))
    assert code == 1 and "the model has no chat template" in err and "qeff infer" in err


def test_an_interrupt_ends_the_answer_and_not_the_program(talk, monkeypatch, tmp_path) -> None:
    file = tmp_path / "c.json"
    heard = []
    hear = Voice.hear

    def press(self, piece):
        hear(self, piece)
        heard.append(piece.text)
        if len(heard) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Voice, "hear", press)
    out, err, code = talk(f"my name is\n/save {file}\nonce\n", "--max-tokens", "100")
    assert code == 0 and "interrupted" in err
    answer = saved(file)[1]["content"]
    assert out.startswith(answer) and 0 < len(answer) < len(out)
    assert sum("tokens, " in line for line in err.splitlines()) == 2


def test_a_second_interrupt_is_one() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts() as is_pressed:
        assert not is_pressed()
        os.kill(os.getpid(), signal.SIGINT)
        assert is_pressed()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_person_at_a_terminal(monkeypatch, capsys) -> None:
    typed = iter(["hello", KeyboardInterrupt(), "there", EOFError()])

    def ask(prompt: str) -> str:
        assert prompt == "> "
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", ask)
    assert list(chatting.typed_lines(Screen())) == ["hello", "there"]
    assert "/exit or Ctrl-D leaves" in capsys.readouterr().err


@pytest.mark.parametrize("is_typed", [True, False])
def test_bytes_that_are_no_text_end_no_conversation(
    tiny, cache, monkeypatch, capsys, tmp_path, is_typed
) -> None:
    lines = f"my name is \udcff\n/save {tmp_path / 'c.json'}\n".encode(errors="surrogateescape")
    stdin = io.TextIOWrapper(io.BytesIO(lines), "utf-8")
    monkeypatch.setattr(stdin, "isatty", lambda: is_typed, raising=False)
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["chat", str(tiny), *ASK]) == 0
    assert saved(tmp_path / "c.json")[0]["content"] == "my name is \ufffd"


PIECES = [
    Piece(Field.REASONING, "hm"),
    Piece(Field.REASONING, "m"),
    Piece(Field.CONTENT, "I look."),
    Piece(Field.CALL, "find"),
    Piece(Field.ARGUMENTS, '{"a": '),
    Piece(Field.ARGUMENTS, "1}"),
    Piece(Field.CALL_END),
    Piece(Field.CALL, "end"),
    Piece(Field.CALL_END),
]


def test_reasoning_and_calls_in_a_pipe(capsys) -> None:
    voice = Voice(Screen())
    for piece in PIECES:
        voice.hear(piece)
    voice.end()
    out, err = capsys.readouterr()
    assert out == 'I look.\n-> find({"a": 1})\n-> end()\n' and err == "hmm\n"


def test_reasoning_is_dim_on_a_terminal(capsys, monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    voice = Voice(Screen())
    for piece in PIECES[:3]:
        voice.hear(piece)
    out, err = capsys.readouterr()
    assert out == "\x1b[2mhm\x1b[0m\x1b[2mm\x1b[0m\x1b[2m\n\n\x1b[0mI look." and err == ""


def test_tools_reach_the_template_and_calls_come_back(talk, tmp_path, capsys) -> None:
    """The model is told what to say: a call that the generic syntax takes."""
    call = '{"name": "find", "arguments": {"what": "sun"}}'
    tools, file = tmp_path / "tools.json", tmp_path / "c.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "find"}}]))
    lines = f"my name is\n/save {file}\n/tool it rises\n"
    words = ["--tools", str(tools), "--choice", call, "--max-tokens", "100"]
    out, err, code = talk(lines, *words)
    assert code == 0 and out.startswith('-> find({"what": "sun"})\n')
    assert "/tool TEXT answers a call" in err
    assert saved(file)[1]["tool_calls"] == [
        {"type": "function", "function": {"name": "find", "arguments": {"what": "sun"}}}
    ]
    assert talk("x\n", "--choice", call, "--max-tokens", "100")[0] == call + "\n"  # none offered
    tools.write_text('{"a": 1}')
    assert talk("x\n", "--tools", str(tools))[2] == 1


def test_a_conversation_on_its_own(tmp_path) -> None:
    talk = Conversation("be kind")
    talk.add("user", "hi")
    talk.add_answer(Answer("hello", "they greet", (ToolCall("f", '{"a": 1}', True),)))
    assert talk.messages[2]["reasoning_content"] == "they greet"
    talk.save(tmp_path / "x.json")
    other = Conversation()
    other.load(tmp_path / "x.json")
    assert other.messages == talk.messages
    Conversation("\udcff").save(tmp_path / "half.json")  # as a command line may hold
    assert saved(tmp_path / "half.json") == [{"role": "system", "content": "?"}]
    talk.clear()
    assert [m["role"] for m in talk.messages] == ["system"]
    for text in ("[", "3", '[{"role": 1}]', '{"messages": [{"role": "user"}]}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(QeffError):
            other.load(tmp_path / "bad.json")
    assert len(other.messages) == 3  # a bad file changes nothing


def test_settings_as_words() -> None:
    params = changed(SamplingParams(), "stop=.")
    assert params.stop == (".",)
    params = changed(params, 'stop=["a", "b"]')
    params = changed(params, "stop-token-ids = 5")
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (5,))
    params = changed(changed(params, "stop="), 'logit_bias={"7": -100}')
    assert params.stop == () and shown(params) == "logit_bias=((7, -100.0),), stop_token_ids=(5,)"
    assert shown(SamplingParams()) == "all defaults"
