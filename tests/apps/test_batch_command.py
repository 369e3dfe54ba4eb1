"""``qeff batch`` over the server's own routes: answers, mistakes, and a process killed again."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qeff.apps.cli.main import main
from qeff.apps.pipeline import build
from qeff.core.options import CompileOptions, ExportOptions

pytest.importorskip("starlette")

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


def line(name: str, url: str = CHAT, **body) -> dict:
    asked = {"messages": [{"role": "user", "content": name}]} if url == CHAT else {"prompt": name}
    body = {**asked, "max_tokens": 12, "temperature": 0, **body}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def write(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def texts(path: Path) -> dict[str, str]:
    """What was answered, by custom id; every one once."""
    found: dict[str, str] = {}
    for text in path.read_text().splitlines():
        answer = json.loads(text)
        assert answer["custom_id"] not in found
        assert answer["response"]["status_code"] == 200, answer
        choice = answer["response"]["body"]["choices"][0]
        found[answer["custom_id"]] = choice.get("text") or choice["message"]["content"]
    return found


@pytest.fixture
def container(tiny: Path, cache: Path) -> Path:
    options = CompileOptions(precision="fp32", ctx_len=256, prefill_seq_len=64, full_batch_size=6)
    return build(tiny, ExportOptions(continuous_batching=True), options)


def test_a_batch_over_the_routes(container, tmp_path, capsys) -> None:
    lines = [line(f"n{n}", CHAT if n % 2 else PLAIN, model="it") for n in range(9)]
    wrong = [line("other", model="nobody"), line("least", max_tokens=-1), line("odd", n="two")]
    source, out = write(tmp_path / "in", lines + wrong), tmp_path / "out"
    words = ["batch", str(source), str(out), "--model", str(container), "--threads", "1"]
    assert main([*words, "--served-model-name", "it", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lines"], told["answered"], told["failed"]) == (12, 12, 3)
    assert told["completion_tokens"] > 9 and told["prompt_tokens"] > 9
    found = {each["custom_id"]: each for each in map(json.loads, out.read_text().splitlines())}
    assert len(found) == 12
    for name, status in {"n3": 200, "n4": 200, "other": 404, "least": 400, "odd": 400}.items():
        response = found[name]["response"]
        assert response["status_code"] == status and response["request_id"].startswith("req_")
        assert (status == 200) == ("error" not in response["body"])
    assert "nobody" in found["other"]["response"]["body"]["error"]["message"]
    whole = out.read_bytes()
    assert main([*words, "--served-model-name", "it"]) == 0
    printed = capsys.readouterr()
    assert "12 of 12 lines were answered before" in printed.err
    assert printed.out == "12 lines: 0 answered, 12 before\n" and out.read_bytes() == whole


def test_a_memory_limit_that_is_too_small_is_not_waited_for(container, tmp_path, capsys) -> None:
    source, out = write(tmp_path / "in", [line("a")]), tmp_path / "out"
    words = ["batch", str(source), str(out), "--model", str(container), "--memory-limit", "1k"]
    assert main(words) == 2
    assert "bytes of memory" in capsys.readouterr().err and out.read_text() == ""


def test_mistakes_are_told_before_a_model_is_opened(tmp_path, capsys) -> None:
    source = write(tmp_path / "in", [line("a")])
    double = write(tmp_path / "double", [line("a"), line("a")])
    out = str(tmp_path / "out")
    wrong = {
        (str(tmp_path / "none"), out): (1, "cannot be read"),
        (str(double), out): (1, "more than one line"),
        (str(source), str(source)): (2, "the same file"),
        (str(source), "/dev/null"): (1, "/dev/null is no file"),
        (str(tmp_path), out): (1, "is no file"),
        (str(source), str(tmp_path / "no" / "out")): (1, "cannot be written"),
        (str(source), out, "--base-url", "nonsense"): (2, "no address"),
        (str(source), out, "--base-url", "http://x", "--model", "y"): (2, "exclude each other"),
        (str(source), out, "--concurrency", "0"): (2, "not at least 1"),
        (str(source),): (2, "required"),
    }
    for words, (code, said) in wrong.items():
        assert main(["batch", *words]) == code, words
        err = capsys.readouterr().err
        assert said in err and "Traceback" not in err
    assert source.read_text() == json.dumps(line("a")) + "\n"


def test_without_the_servers_libraries_it_says_what_is_missing(tmp_path, environment) -> None:
    source = write(tmp_path / "in", [line("a")])
    code = (
        "import sys\nsys.modules['starlette'] = None\n"
        "from qeff.apps.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "batch", str(source), str(tmp_path / "out")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "starlette is not installed" in done.stderr
    assert "pip install 'qeff[serve]'" in done.stderr
    words += ["--base-url", "http://127.0.0.1:x"]  # which needs none of them
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no address" in done.stderr


def test_killed_twice_it_answers_every_line_once(container, tmp_path, environment) -> None:
    source = write(tmp_path / "in", [line(f"{n} of them", max_tokens=60) for n in range(80)])
    calm, out = tmp_path / "calm", tmp_path / "out"
    words = [sys.executable, "-m", "qeff", "batch", str(source)]
    more = ["--model", str(container), "--threads", "1", "--quiet"]
    moments, num_kills = random.Random(7), 0
    for _ in range(2):
        process = subprocess.Popen([*words, str(out), *more], env=environment, stdout=-3)
        before = out.stat().st_size if out.exists() else 0
        while process.poll() is None and (not out.exists() or out.stat().st_size == before):
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        num_kills += process.wait() == -signal.SIGKILL
    assert num_kills >= 1
    subprocess.run([*words, str(out), *more], env=environment, check=True, stdout=-3)
    subprocess.run([*words, str(calm), *more], env=environment, check=True, stdout=-3)
    assert len(texts(out)) == 80 and texts(out) == texts(calm)
