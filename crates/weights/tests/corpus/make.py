#!/usr/bin/env python3
"""Writes hostile and broken files beside it: what `tests/hostile.rs` wants refused (or read) and
what the fuzzers start from. Needs nothing but Python.

A case for safetensors is the text of a `config.json` (or nothing), a zero byte, and the file.
"""

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
HUGE = 1 << 60
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 = range(13)


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def string(s):
    s = s.encode() if isinstance(s, str) else s
    return u64(len(s)) + s


def key(name, kind, value):
    return string(name) + u32(kind) + value


def tensor(name, dims, kind, offset):
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def gguf(keys=(), tensors=(), data=b"", version=3, n_keys=None, n_tensors=None, align=32):
    n_keys = len(keys) if n_keys is None else n_keys
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    head = b"GGUF" + u32(version) + u64(n_tensors) + u64(n_keys) + b"".join([*keys, *tensors])
    return head + bytes(-len(head) % align) + data


ARCH = key("general.architecture", STR, string("llama"))
ONE = tensor("a", [8], 0, 0)


def nested(depth):
    array = u32(U8) + u64(0)
    for _ in range(depth):
        array = u32(ARRAY) + u64(1) + array
    return key("deep", ARRAY, array)


def aligned(n):
    return key("general.alignment", U32, u32(n))


GGUF = {
    # Read without complaint.
    "ok-version-2": gguf([ARCH], [ONE], bytes(32), version=2),
    "ok-empty": gguf(),
    "ok-unknown-type": gguf([], [tensor("a", [8], 99, 0)], bytes(32)),
    "ok-nan-scales": gguf([], [tensor("a", [32], 2, 0)], b"\x00\x7e" + bytes(30)),
    "ok-key-nan": gguf([key("x", F32, b"\x00\x00\xc0\x7f")]),
    "ok-nested": gguf([nested(8)]),
    "ok-zero-dimension": gguf([], [tensor("a", [0, HUGE], 0, 0)]),
    # Refused.
    "empty-file": b"",
    "not-gguf": b"GGML" + bytes(60),
    "version-1": gguf(version=1),
    "version-4": gguf(version=4),
    "big-endian": gguf(version=3 << 24),
    "cut-in-counts": gguf()[:12],
    "cut-in-key": gguf([ARCH])[:40],
    "cut-in-tensors": gguf([ARCH], [ONE], n_tensors=2, align=1),
    "key-count-huge": gguf([ARCH], n_keys=HUGE),
    "tensor-count-huge": gguf([ARCH], [ONE], n_tensors=HUGE),
    "counts-all-ones": gguf(n_keys=(1 << 64) - 1, n_tensors=(1 << 64) - 1),
    "key-length-huge": gguf([u64(HUGE) + b"x"]),
    "string-length-huge": gguf([key("x", STR, u64((1 << 64) - 1))]),
    "array-length-huge": gguf([key("x", ARRAY, u32(U64) + u64(1 << 61))]),
    "string-array-huge": gguf([key("x", ARRAY, u32(STR) + u64(HUGE))]),
    "nested-array-huge": gguf([key("x", ARRAY, u32(ARRAY) + u64(HUGE))]),
    "nested-too-deep": gguf([nested(500)]),
    "key-type-unknown": gguf([key("x", 13, bytes(8))]),
    "array-type-unknown": gguf([key("x", ARRAY, u32(77) + u64(1) + bytes(8))]),
    "key-twice": gguf([ARCH, ARCH]),
    "key-not-utf8": gguf([key(b"\xff\xfe", U8, b"\0")]),
    "value-not-utf8": gguf([key("x", STR, string(b"\xc3"))]),
    # Two strings that are UTF-8 together, but neither alone.
    "strings-split-a-character": gguf(
        [key("x", ARRAY, u32(STR) + u64(2) + string(b"\xc3") + string(b"\xa9"))]
    ),
    "bool-is-2": gguf([key("x", BOOL, b"\2")]),
    "tensor-twice": gguf([], [ONE, tensor("a", [8], 0, 32)], bytes(64)),
    "tensors-overlap": gguf([], [ONE, tensor("b", [8], 0, 0)], bytes(64)),
    "tensor-outside": gguf([], [tensor("a", [9], 0, 0)], bytes(32)),
    "offset-huge": gguf([], [tensor("a", [8], 0, (1 << 64) - 32)], bytes(32)),
    "offset-unaligned": gguf([], [tensor("a", [4], 0, 16)], bytes(32)),
    "shape-overflows": gguf([], [tensor("a", [1 << 32, 1 << 32], 0, 0)], bytes(32)),
    "shape-bytes-overflow": gguf([], [tensor("a", [1 << 62], 0, 0)], bytes(32)),
    "dimensions-huge": gguf([], [string("a") + u32(0xFFFFFFFF) + bytes(64)]),
    "row-not-whole-blocks": gguf([], [tensor("a", [16, 2], 2, 0)], bytes(32)),
    "alignment-0": gguf([aligned(0)], [ONE], bytes(32)),
    "alignment-3": gguf([aligned(3)], [ONE], bytes(32)),
    "alignment-huge": gguf([aligned(1 << 31)], [ONE], bytes(32)),
    "alignment-is-text": gguf([key("general.alignment", STR, string("32"))], [ONE], bytes(32)),
    "lone-part": gguf([key("split.count", U16, b"\x03\0")], [ONE], bytes(32)),
    "split-count-negative": gguf([key("split.count", I16, b"\xff\xff")], [ONE], bytes(32)),
}


def case(header, data=b"", config="", length=None):
    header = header if isinstance(header, (bytes, str)) else json.dumps(header)
    header = header.encode() if isinstance(header, str) else header
    config = config if isinstance(config, str) else json.dumps(config)
    return config.encode() + b"\0" + u64(len(header) if length is None else length) + header + data


def entry(dtype, shape, start, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


A = entry("F32", [2], 0, 8)
PACKED = {"x.weight": entry("U32", [1, 8], 0, 32), "x.scales": entry("F16", [1, 1], 32, 34)}
BIASED = PACKED | {"x.biases": entry("F16", [1, 1], 34, 36)}


def quantized(**block):
    return {"quantization": {"bits": 4, "group_size": 64} | block}


SAFETENSORS = {
    # Read without complaint.
    "ok-plain": case({"__metadata__": {"format": "pt"}, "a": A}, bytes(8)),
    "ok-mlx": case(BIASED, bytes(36), quantized()),
    "ok-mlx-nan": case(BIASED, bytes(32) + b"\xff\x7f\xff\x7f", quantized()),
    "ok-unknown-type": case({"a": entry("F3", [5], 0, 2)}, bytes(2)),
    "ok-empty": case({}),
    "ok-scalar": case({"a": entry("F32", [], 0, 4)}, bytes(4)),
    "ok-zero-dimension": case({"a": entry("F32", [0, HUGE], 0, 0)}),
    # Refused when opened.
    "empty-file": b"\0",
    "cut-in-length": b"\0\1\2\3",
    "cut-in-header": case({"a": A}, length=1000),
    "header-huge": case({"a": A}, bytes(8), length=HUGE),
    "header-not-json": case("{ this is not", bytes(8)),
    "header-not-utf8": case(b'{"\xff":1}'),
    "header-is-array": case([A], bytes(8)),
    "header-nested-deeply": case('{"a":' + "[" * 5000 + "]" * 5000 + "}"),
    "name-twice": case(f'{{"a":{json.dumps(A)},"a":{json.dumps(A)}}}', bytes(8)),
    "offsets-swapped": case({"a": entry("F32", [2], 8, 0)}, bytes(8)),
    "offsets-overlap": case({"a": A, "b": entry("F32", [2], 4, 12)}, bytes(12)),
    "offsets-hole": case({"a": A, "b": entry("F32", [2], 12, 20)}, bytes(20)),
    "offsets-outside": case({"a": entry("F32", [4], 0, 16)}, bytes(8)),
    "offsets-all-ones": case({"a": entry("U8", [(1 << 64) - 1], 0, (1 << 64) - 1)}, bytes(8)),
    "offsets-negative": case({"a": entry("F32", [2], -8, 0)}, bytes(8)),
    "data-left-over": case({"a": A}, bytes(9)),
    "shape-does-not-fill": case({"a": entry("F32", [3], 0, 8)}, bytes(8)),
    "shape-overflows": case({"a": entry("F32", [1 << 32, 1 << 32], 0, 8)}, bytes(8)),
    "shape-overflows-unknown": case({"a": entry("F3", [1 << 32, 1 << 32], 0, 8)}, bytes(8)),
    "bits-wrong-type": case(BIASED, bytes(36), quantized(bits="four")),
    "layer-wrong-type": case(BIASED, bytes(36), quantized(x={"group_size": -1})),
    # Refused when the tensor is asked for.
    "use-mlx-without-config": case(BIASED, bytes(36)),
    "use-mlx-without-biases": case(PACKED, bytes(34), quantized()),
    "use-mlx-wrong-group": case(BIASED, bytes(36), quantized(group_size=32)),
    "use-mlx-group-0": case(BIASED, bytes(36), quantized(group_size=0)),
    "use-mlx-group-huge": case(BIASED, bytes(36), quantized(group_size=1 << 63)),
    "use-mlx-7-bits": case(
        {"x.weight": entry("U32", [1, 14], 0, 56), "x.scales": entry("F16", [1, 1], 56, 58)},
        bytes(58),
        quantized(bits=7),
    ),
    "use-mlx-layer-false": case(BIASED, bytes(36), quantized(x=False)),
    "use-mlx-words-overflow": case(
        {"x.weight": entry("U32", [0, 1 << 59], 0, 0), "x.scales": entry("F16", [0, 1], 0, 0)},
        b"",
        quantized(),
    ),
    "use-mxfp4-wrong-shape": case(
        {"x_blocks": entry("U8", [2, 16], 0, 32), "x_scales": entry("U8", [3], 32, 35)}, bytes(35)
    ),
    "use-f64": case({"a": entry("F64", [1], 0, 8)}, bytes(8)),
    "use-fp8": case({"a": entry("F8_E4M3", [8], 0, 8)}, bytes(8)),
}


def main():
    for folder, cases in {"gguf": GGUF, "safetensors": SAFETENSORS}.items():
        (HERE / folder).mkdir(exist_ok=True)
        for old in (HERE / folder).iterdir():
            old.unlink()
        for name, content in cases.items():
            (HERE / folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
