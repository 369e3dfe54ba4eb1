"""The text that quantisation is calibrated with: ours, the user's, or none for random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from qeff.apps.probe import CALIBRATION_TOKENS, make_probe
from qeff.core.errors import OptionValueError
from qeff.core.options import CompileOptions, TextFile
from qeff.core.spec import ModelSpec

SPEC = ModelSpec("m", "a", "t", 32, 1, 1, 64, ())


def text_files(has_beginning: bool = True) -> dict[str, bytes]:
    words = {"?": 0, "<s>": 1, "one": 2, "two": 3, "three": 4}
    tokenizer = Tokenizer(WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    if has_beginning:
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    config = json.dumps({"bos_token": "<s>"}).encode()
    return {"tokenizer.json": tokenizer.to_str().encode(), "tokenizer_config.json": config}


def calibration(files: dict[str, bytes], spec: ModelSpec = SPEC, **options: Any) -> Any:
    return make_probe(files, spec, CompileOptions(**options)).calibration


def test_our_pages_fill_whole_sequences() -> None:
    made = calibration(text_files())
    assert made.text == "pages of many kinds"
    assert made.tokens.shape[1] == SPEC.max_positions  # a model may not see longer ones
    assert made.tokens.shape[0] > 20 and (made.tokens[:, 0] == 1).all()
    assert (made.tokens[1:, 1:] == 1).sum() == 0
    assert not (calibration(text_files(has_beginning=False)).tokens[:, 0] == 1).any()


def test_a_file_of_the_users_is_read(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("one two three " * 10)
    made = calibration(text_files(), calibration_file=TextFile.read(path))
    assert made.tokens.tolist() == [[1, *[2, 3, 4] * 10]] and "user" in made.text
    path.write_text("  \n")
    with pytest.raises(OptionValueError, match="no text"):
        calibration(text_files(), calibration_file=TextFile.read(path))
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(OptionValueError, match="cannot be read as text"):
        calibration(text_files(), calibration_file=TextFile.read(path))


def test_a_model_without_words_gets_random_tokens() -> None:
    made = calibration({})
    assert made.text == "random tokens" and made.tokens.size == CALIBRATION_TOKENS
    np.testing.assert_array_equal(made.tokens, calibration({}).tokens)


def test_random_weights_are_not_calibrated() -> None:
    assert make_probe({}, SPEC, CompileOptions(), is_calibrated=False).calibration is None
