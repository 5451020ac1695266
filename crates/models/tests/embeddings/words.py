"""Small tokenizers of each kind, as tokenizer.json and as GGUF metadata.

Each function gives a tokenizer and a function that writes it to a GGUF file.
"""

import gguf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def around(before, after, tokenizer):
    """Puts tokens before and after each text."""
    names = [name for name in (before, after) if name]
    single = " ".join(name for name in (before, "$A", after) if name)
    return processors.TemplateProcessing(
        single=single, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
    )


def bert():
    """WordPiece in lower case."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = list(LETTERS) + list("0123456789.,:!") + [f"##{c}" for c in LETTERS]
    pieces += ["the", "quick", "fox", "dog", "play", "##ing", "##es", "hello", "world", "and", "你"]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(specials + pieces)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(specials)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = around("[CLS]", "[SEP]", tokenizer)
    tokenizer.decoder = decoders.WordPiece()

    def write(writer):
        inside = [p[2:] if p.startswith("##") else f"\u2581{p}" for p in pieces]
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(specials + inside)
        writer.add_token_types([CONTROL] * len(specials) + [NORMAL] * len(pieces))
        for key, name in [("unknown", 1), ("seperator", 3), ("padding", 0), ("cls", 2), ("mask", 4)]:
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", name)

    return tokenizer, write


def qwen():
    """BPE over bytes, an end of text behind each text."""
    regex = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "x"), ("f", "ox"), ("Ġ", "fox"), ("i", "n")]
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = alphabet + [a + b for a, b in merges] + specials
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE({t: i for t, i in vocab.items() if t not in specials}, merges))
    tokenizer.add_special_tokens(specials)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = around(None, "<|endoftext|>", tokenizer)
    tokenizer.decoder = decoders.ByteLevel()

    def write(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(tokens)
        writer.add_token_types([CONTROL if t in specials else NORMAL for t in tokens])
        writer.add_token_merges([f"{a} {b}" for a, b in merges])
        writer.add_eos_token_id(vocab["<|endoftext|>"])
        writer.add_pad_token_id(vocab["<|endoftext|>"])
        writer.add_add_bos_token(False)
        writer.add_add_eos_token(True)

    return tokenizer, write


def gemma():
    """SentencePiece's BPE with bytes for what it does not know."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("o", "x"), ("f", "ox"), ("▁", "fox"), ("▁", "a")]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = ["▁"] + list(LETTERS) + list("THPG.,:!7")
    tokens = specials + bytes_ + [a + b for a, b in merges] + letters
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.add_special_tokens(specials)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.post_processor = around("<bos>", "<eos>", tokenizer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )

    def write(writer):
        kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN] + [BYTE] * 256
        ranks = [0.0] * 260 + [-float(i) for i in range(len(merges))] + [-100.0] * len(letters)
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(ranks)
        writer.add_token_types(kinds + [NORMAL] * (len(tokens) - len(kinds)))
        writer.add_pad_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_bos_token_id(2)
        writer.add_unk_token_id(3)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        writer.add_add_space_prefix(False)

    return tokenizer, write


TOKENIZERS = {"bert": bert, "qwen": qwen, "gemma": gemma}

NAMES = {
    "bert": {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    },
    "qwen": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "gemma": {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    },
}


def wrap(tokenizer, kind):
    """The tokenizer as transformers saves it."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES[kind])
