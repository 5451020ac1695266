"""Models of a few hundred kilobytes whose answers are known: each token has exactly one successor.

Embeddings are one-hot, attention and feed-forward add nothing, and the output matrix holds the
successors. The last byte of every prompt is a line break, so that every answer is what follows one.
"""

import array
import struct

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\nCall as <tool_call>{"name": ..., "arguments": ...}</tool_call>:\\n' }}
{%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
# The tags by which a template shows that its model thinks.
THINKING = "{#- <think> </think> #}"

# Each piece is one token. Words are cut in odd places, and the emoji is two tokens of two bytes.
ANSWER = ["Sky ", "bl", "ue ", b"\xf0\x9f", b"\x98\x80", " grass", " green", "."]
CALL = ["Wait. ", "<tool_", "call>", '{"name": "get_wea', 'ther", "argu', 'ments": {"ci', 'ty": "Par', 'is"}}', "</tool_call>"]
THOUGHT = ["<think>", "Two and", " two.", "</think>", "Four", "!"]

ANSWER_TEXT = "Sky blue 😀 grass green."
ENDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEAD = 32


def model(pieces, endless=False, thinks=False):
    """The bytes of a GGUF file; an endless model repeats its answer."""
    pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    # A piece of one byte would be that byte's token.
    tokens = [symbols(bytes([byte])) for byte in range(256)]
    own = {}
    for piece in pieces:
        assert piece not in own, "a token has one successor"
        own[piece] = tokens.index(symbols(piece)) if len(piece) == 1 else len(tokens)
        if len(piece) > 1:
            tokens.append(symbols(piece))
    kinds = [1] * len(tokens) + [3] * len(ENDS)
    end_of_text, start, end = range(len(tokens), len(tokens) + 3)
    # There must be merges; texts have none of this one.
    tokens += ENDS + ["QZ"]
    kinds.append(1)
    following = [end] * len(tokens)
    answer = [own[piece] for piece in pieces]
    for before, after in zip([10, *answer], [*answer, answer[0] if endless else end]):
        following[before] = after
    metadata = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.license": "MIT",
        "llama.block_count": 1,
        "llama.context_length": 1 << 16,
        "llama.embedding_length": len(tokens),
        "llama.feed_forward_length": HEAD,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.attention.key_length": HEAD,
        "llama.attention.value_length": HEAD,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.dimension_count": HEAD,
        "llama.rope.freq_base": 10_000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["Q Z"],
        "tokenizer.ggml.bos_token_id": start,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.chat_template": TEMPLATE + (THINKING if thinks else ""),
    }
    return gguf(metadata, tensors(len(tokens), following))


def tensors(size, following):
    """Names, shapes with the fastest dimension first, and values."""
    identity = array.array("f", bytes(4 * size * size))
    output = array.array("f", bytes(4 * size * size))
    for token in range(size):
        identity[token * size + token] = 1.0
        output[following[token] * size + token] = 1.0
    ones = array.array("f", [1.0] * size)
    zeros = array.array("f", bytes(4 * size * HEAD))
    yield "token_embd.weight", (size, size), identity
    yield "output.weight", (size, size), output
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        yield f"{name}.weight", (size,), ones
    for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
        yield f"blk.0.{name}.weight", (size, HEAD), zeros
    for name in ("attn_output", "ffn_down"):
        yield f"blk.0.{name}.weight", (HEAD, size), zeros


def gguf(metadata, tensors):
    """A GGUF file, version 3."""
    tensors = list(tensors)
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += string(key) + typed(value)
    offset = 0
    for name, shape, values in tensors:
        out += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        offset += padded(4 * len(values))
    out += bytes(padded(len(out)) - len(out))
    for _, _, values in tensors:
        data = values.tobytes()
        out += data + bytes(padded(len(data)) - len(data))
    return bytes(out)


def typed(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def padded(size, alignment=32):
    return -(-size // alignment) * alignment


def symbols(data):
    """How byte-level vocabularies write these bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return "".join(chr(b) if b in plain else chr(256 + hidden.index(b)) for b in data)
