"""A folder that ``qeff export`` wrote: what compile takes from it, and what is never replaced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qeff.apps.cli.main import main
from qeff.apps.exported import compile_onnx, export_onnx
from qeff.container import Container
from qeff.core.errors import SourceError, UsageError
from qeff.core.options import CompileOptions, ExportOptions
from qeff.sources.location import locate_path

OPTIONS = CompileOptions(target="reference", precision="fp32", ctx_len=64)


@pytest.fixture
def exported(tiny: Path, cache: Path, tmp_path: Path) -> Path:
    return export_onnx(tiny, ExportOptions(), out=tmp_path / "onnx").parent


def test_random_weights_are_compiled_from_their_graph(tiny, cache, capsys, tmp_path) -> None:
    out, qpc = tmp_path / "onnx", tmp_path / "qpc"
    words = ["--model-name", str(tiny), "--load-format", "dummy", "--export-dir", str(out)]
    assert main(["export", *words]) == 0
    words = ["--onnx-path", str(out), "--qpc-path", str(qpc), "--precision", "fp32"]
    assert main(["compile", *words]) == 0, capsys.readouterr().err
    assert Container.open(qpc).manifest.provenance["source"]["kind"] == "random weights"


def test_a_checkpoint_keeps_the_name_that_it_was_exported_under(tiny, cache, tmp_path) -> None:
    """The folder of a hub's snapshot is called by its commit."""
    snapshot = shutil.copytree(tiny, tmp_path / "0123abcd")
    location = locate_path(snapshot, name="tiny")
    path = export_onnx(location, ExportOptions(), out=tmp_path / "onnx")
    found = Container.open(compile_onnx(path, OPTIONS))
    assert found.manifest.model.name == "tiny"
    assert found.manifest.provenance["source"]["name"] == "tiny"
    assert found.path.parent.name == "tiny"  # where infer looks for it


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: [],
        lambda record: {**record, "path": 3},
        lambda record: {**record, "export": {"unknown": True}},
        lambda record: {**record, "source": {"name": "x"}},
        lambda record: {**record, "source": None},
    ],
)
def test_a_damaged_record_is_one_sentence(exported: Path, damage) -> None:
    file = exported / "source.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    with pytest.raises(SourceError, match="not a graph that qeff export wrote"):
        compile_onnx(exported, OPTIONS)


def test_a_file_that_was_removed_is_written_again(exported: Path, tiny: Path) -> None:
    path = next(exported.glob("tiny-llama.onnx"))
    path.unlink()
    assert export_onnx(tiny, ExportOptions(), out=exported) == path and path.is_file()


def test_files_of_somebody_else_are_left_alone(exported: Path, tiny: Path) -> None:
    (exported / "thesis.txt").write_text("years")
    with pytest.raises(UsageError, match=r"thesis\.txt, which is no part"):
        export_onnx(tiny, ExportOptions(continuous_batching=True), out=exported)
    assert (exported / "thesis.txt").read_text() == "years"


def test_a_folder_that_stays_is_refused_before_the_work(exported, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("qeff.apps.exported.opened", lambda location: pytest.fail("work was done"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(UsageError, match="is not a container"):
        compile_onnx(exported, OPTIONS, out=tmp_path / "mine")
