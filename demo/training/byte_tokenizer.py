"""A tokenizer.json in which every byte is one token whose id is the byte's value."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from .config import BOS, EOS, PAD

SPECIALS = {BOS: "<|begin_of_text|>", EOS: "<|end_of_text|>", PAD: "<|pad|>"}
UNUSED = (256, "<|unused|>")


def byte_characters() -> list[str]:
    """The printable stand-in of every byte in the byte-level convention, by byte value."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    characters, substitutes = [], iter(range(256, 512))
    for byte in range(256):
        characters.append(chr(byte) if byte in printable else chr(next(substitutes)))
    return characters


def build() -> Tokenizer:
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    vocabulary[UNUSED[1]] = UNUSED[0]
    vocabulary |= {text: token for token, text in SPECIALS.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS.values()])
    # Every training text, and every prompt acceptance was measured on, begins with the start token.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[BOS]} $A", special_tokens=[(SPECIALS[BOS], BOS)]
    )
    return tokenizer


def write(folder: Path, longest: int) -> None:
    build().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
        "pad_token": SPECIALS[PAD],
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
