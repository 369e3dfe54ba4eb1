"""Small tokenizers of the two families that decoders use, made on the fly."""

from __future__ import annotations

import json

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog. it's a dog's life, isn't it?",
    "Hello world, hello there!  two spaces, a tab\tand a line\nbreak; numbers 12 345",
    "naïve café über straße — “quotes” … the the the and and and world world hello",
]
TEMPLATE = (
    "{%- if messages[0].role == 'system' %}{{ bos_token }}{{ messages[0].content | trim }}\n"
    "{% endif %}{% for message in messages %}\n"
    "    {% if message.role == 'system' %}{% continue %}{% endif %}\n"
    "    {% if message.role == 'tool' %}{{ raise_exception('no tools <here>') }}{% endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}\n"
    "{% endfor %}{% if tools %}{{ tools | tojson(indent=2) }}{{ tools[0] | tojson }}{% endif %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    "{{ strftime_now('%Y') }}{{ mood | default('calm') }}"
)


def byte_level() -> Tokenizer:
    """Like GPT-2's: bytes as characters, merges over them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace() -> Tokenizer:
    """Like Llama-2's: a mark for each space, bytes for characters that have no token."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "<|im_start|>": 3, "<|im_end|>": 4}
    vocab |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    pieces = ["▁", *sorted(set("".join(CORPUS)) - {" ", "\n", "\t"})]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "w"), ("h", "e"), ("l", "l"), ("▁", "▁")]
    pieces += [left + right for left, right in merges]
    for piece in pieces:
        vocab.setdefault(piece, len(vocab))
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    return tokenizer


def text_files(tokenizer: Tokenizer, **config) -> dict[str, bytes]:
    """The files a checkpoint has beside its weights."""
    declared = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "special": True, "__type": "AddedToken"},
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1000,
        **config,
    }
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(declared).encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }


KINDS = {"byte_level": byte_level, "metaspace": metaspace}
