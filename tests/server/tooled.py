"""Tiny models whose chat templates know tools and thoughts, and a server over them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TURNS = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>THOUGHTS{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THOUGHTS = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
TEMPLATES = {
    "tooled": TURNS.replace("THOUGHTS", ""),
    "thinking": TURNS.replace("THOUGHTS", THOUGHTS) + "{% if enable_thinking %}<think>{% endif %}",
}
CTX_LEN = 768

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}


def make_talker(name: str, tiny: Path, folder: Path) -> Path:
    """Write a model with one of the templates."""
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = CTX_LEN
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    return folder


def compile_talker(folder: Path, out: Path) -> Path:
    """The container of such a model."""
    from qeff.apps.pipeline import build
    from qeff.core.options import CompileOptions, ExportOptions

    options = CompileOptions(
        precision="fp32", ctx_len=CTX_LEN, prefill_seq_len=128, full_batch_size=4
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(out.parent))
        return build(folder, ExportOptions(continuous_batching=True), options, out=out)


@pytest.fixture(scope="session")
def talker_containers(
    tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path
) -> dict[str, Path]:
    """The models by name."""
    root = tmp_path_factory.mktemp("talkers")
    folders = {name: make_talker(name, tiny_folder, root / name) for name in TEMPLATES}
    return {name: compile_talker(path, root / f"{name}.out") for name, path in folders.items()}


@pytest.fixture(scope="session")
def talkers(
    run_server: Callable[..., Any], container: Path, talker_containers: dict[str, Path]
) -> Iterator[Any]:
    """A server with three models: ``tiny`` as the default, ``tooled`` and ``thinking``."""
    with run_server({"tiny": container, **talker_containers}) as server:
        yield server
