"""Text to token ids and back, from the tokenizer files that travel in a container.

Reads ``tokenizer.json`` and what the checkpoint says beside it: special tokens, ends of text, the
chat template. The ids and texts are those of transformers' tokenizers, which is not needed here.
Knows nothing of models or sessions.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from tokenizers import Tokenizer

from qeff.core.errors import ContainerError, RequestError
from qeff.generate.bad_words import TokenTexts
from qeff.generate.chat import ChatTemplate, Message, choose_template
from qeff.generate.constraint import Constraint, ConstraintCompiler, Matcher, is_symbol
from qeff.generate.detokenize import Detokenizer
from qeff.generate.fields import AnswerFormat
from qeff.generate.token_bytes import TokenBytes

TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
LONG_TEXT = 4096  # characters, or tokens: what takes longer than other threads should wait
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class TextFiles(Protocol):
    """Whatever holds a model's text files by name; a container is one."""

    def text_files(self) -> Mapping[str, bytes]: ...


class Text:
    """A model's tokenizer, its special tokens and its chat template."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        if "tokenizer.json" not in files:
            raise ContainerError(
                "there is no tokenizer.json", "give token ids instead of text, or compile again"
            )
        self.tokenizer = _read_tokenizer(files)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        config = _read_json(files, "tokenizer_config.json")
        self.special_tokens = _special_tokens(_read_json(files, "special_tokens_map.json"), config)
        self.generation_config = _read_json(files, "generation_config.json")
        self.bos_id = self._id_of("bos_token")
        self.eos_ids = self._find_eos_ids(_read_json(files, "config.json"))
        self.pad_id = self._id_of("pad_token")
        added = self.tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        # What a grammar has to name, since it is no text to it: see constraint.is_symbol.
        self.symbol_ids = frozenset(
            index for index, token in added.items() if is_symbol(token.content, token.special)
        )
        self._declared_templates = _find_templates(files, config)
        self._declared_answers = config.get("response_template")
        self._templates: dict[str, ChatTemplate] = {}
        self._compilers: dict[tuple[int, frozenset[int]], ConstraintCompiler] = {}
        self._token_texts: dict[tuple[int, bool], TokenTexts] = {}
        # A tokenizer.json made from another format may lack the step that its config asks for.
        self._needs_bos = config.get("add_bos_token") is True and self.bos_id is not None

    @classmethod
    def from_container(cls, container: TextFiles) -> Text:
        """Read the text files of a container, or of anything that has them by name."""
        files = container.text_files()
        return cls({name: files[name] for name in TEXT_FILES if name in files})

    @property
    def has_chat_template(self) -> bool:
        return choose_template(self._declared_templates) is not None

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the chat template shows tools to the model."""
        template = choose_template(self._declared_templates, has_tools=True) or ""
        return re.search(r"\btools\b", template) is not None

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def answer_format(self) -> AnswerFormat:
        """How the model's chat answers mark reasoning and calls of tools."""
        template = choose_template(self._declared_templates, has_tools=True) or ""
        return AnswerFormat.from_template(template, self._declared_answers)

    def encode(self, prompt: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, with the tokens at its ends that the model expects."""
        try:
            if len(prompt) < LONG_TEXT:
                found = self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
            else:  # the one way to the same ids that lets other threads run meanwhile
                (found,) = self.tokenizer.encode_batch_fast(
                    [prompt], add_special_tokens=add_special_tokens
                )
        except TypeError:  # of the library, for halves of characters too
            raise RequestError(
                f"a prompt must be text of whole characters, not {prompt!r:.60}",
                "text in another encoding than UTF-8 cannot be read",
            ) from None
        ids = list(found.ids)
        if add_special_tokens and self._needs_bos and ids[:1] != [self.bos_id]:
            assert self.bos_id is not None
            ids.insert(0, self.bos_id)
        return ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation; the template itself writes the special tokens."""
        rendered = self.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
        return self.encode(rendered, add_special_tokens=False)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation, as the template writes it."""
        return self._template(has_tools=bool(tools)).render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        if len(token_ids) < LONG_TEXT:
            return str(self.tokenizer.decode(list(token_ids), skip_special_tokens))
        (decoded,) = self.tokenizer.decode_batch([list(token_ids)], skip_special_tokens)
        return str(decoded)

    def detokenizer(
        self, context: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """Text piece by piece; ``context`` is the prompt that the ids go on from."""

        def decode(token_ids: Sequence[int]) -> str:
            return self.decode(token_ids, skip_special_tokens=skip_special_tokens)

        skipped = self.special_ids if skip_special_tokens else frozenset()
        return Detokenizer(decode, skipped=skipped, context=context[-64:])

    def token_texts(self, vocab_size: int, *, skip_special_tokens: bool) -> TokenTexts:
        """What each token adds to a text; kept, since a vocabulary is large."""
        key = (vocab_size, skip_special_tokens)
        if key not in self._token_texts:
            pieces = TokenBytes(self.tokenizer, self.special_ids)
            skipped = self.special_ids if skip_special_tokens else frozenset()
            texts = [b"" if one in skipped else pieces[one] for one in range(vocab_size)]
            self._token_texts[key] = TokenTexts(texts)
        return self._token_texts[key]

    def matcher(self, constraint: Constraint, vocab_size: int, eos_ids: frozenset[int]) -> Matcher:
        """A constraint on an output, at its beginning; what is compiled for it is kept."""
        key = (vocab_size, eos_ids)
        if key not in self._compilers:
            self._compilers[key] = ConstraintCompiler(self.tokenizer, vocab_size, eos_ids)
        return self._compilers[key].start(constraint)

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.tokenizer.token_to_id(token)

    def _find_eos_ids(self, model_config: Mapping[str, Any]) -> frozenset[int]:
        # Chat models often end a turn by a token that only one of the two files names.
        declared = _as_ids(self.generation_config.get("eos_token_id"))
        own = self._id_of("eos_token")
        found = declared | (frozenset() if own is None else frozenset({own}))
        return found or _as_ids(model_config.get("eos_token_id"))

    def _template(self, *, has_tools: bool) -> ChatTemplate:
        source = choose_template(self._declared_templates, has_tools=has_tools)
        if source is None:
            raise RequestError(
                "the model has no chat template", "give the prompt as plain text, without --chat"
            )
        if source not in self._templates:
            self._templates[source] = ChatTemplate(source, self.special_tokens)
        return self._templates[source]


def _read_tokenizer(files: Mapping[str, bytes]) -> Tokenizer:
    try:
        return Tokenizer.from_str(files["tokenizer.json"].decode("utf-8"))
    finally:
        # The library raises bare exceptions, and says less about a file that is no JSON.
        if type(sys.exception()) is Exception or isinstance(sys.exception(), ValueError):
            _read_json(files, "tokenizer.json")
            raise ContainerError(
                f"tokenizer.json describes no tokenizer: {sys.exception()}",
                "compile again, with the tokenizer files that belong to the model",
            )


def _read_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        data = json.loads(files[name])
    except ValueError as error:
        raise ContainerError(f"{name} is no valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ContainerError(f"{name} holds no JSON object")
    return data


def _find_templates(files: Mapping[str, bytes], config: Mapping[str, Any]) -> Any:
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode("utf-8")
    return config.get("chat_template")


def _special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role; a later config wins. A token is a text or an object with one."""
    found: dict[str, str] = {}
    for config in configs:
        for name in SPECIAL_TOKENS:
            token = config.get(name)
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str):
                found[name] = content
    return found


def _as_ids(value: object) -> frozenset[int]:
    """``eos_token_id`` is nothing, a number or a list of numbers."""
    values = value if isinstance(value, list) else [value]
    return frozenset(one for one in values if isinstance(one, int))
