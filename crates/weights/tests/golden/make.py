#!/usr/bin/env python3
"""Writes the golden files beside it with independent programs: gguf, safetensors, mlx, numpy.

    pip install gguf safetensors mlx numpy && python make.py

Everything is seeded, so a second run changes nothing.
"""

import shutil
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V
from gguf import GGUFWriter
from gguf import GGML_QUANT_SIZES, quants

HERE = Path(__file__).parent

# Where in a block of each type the float16 numbers lie.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [],
}  # fmt: skip
ODD_HALVES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8, 65504.0]


def blocks_of(kind, count, rng):
    """Random blocks: the first half with sane scales, the others with odd or random ones."""
    size = GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for j, at in enumerate(HALVES[kind]):
            sane, odd = rng.normal() * 0.05, ODD_HALVES[(i + j) % len(ODD_HALVES)]
            if i < count - 2:
                half = np.float16(sane if i < count // 2 else odd)
                block[at : at + 2] = np.frombuffer(half.tobytes(), np.uint8)
        if kind == T.MXFP4:
            block[0] = [120, 127, 130, 0, 1, 2, 254, 255][i % 8]
    return blocks


def dequantize(folder):
    """`TYPE.bin`: 16 blocks, then the float32 values the gguf package decodes them to."""
    rng = np.random.default_rng(1)
    for kind in HALVES:
        blocks = blocks_of(kind, 16, rng)
        values = quants.dequantize(blocks.reshape(1, -1), kind)
        (folder / f"{kind.name}.bin").write_bytes(blocks.tobytes() + values.astype("<f4").tobytes())


def quantize(folder):
    """`input.f32`: rows of 32 values; `TYPE.bin`: what the gguf package makes of them."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(24, 32)).astype(np.float32)
    rows[1:4] *= np.array([[1e-3], [1e3], [1e-6]], np.float32)
    rows[4] = 0
    rows[5] = 1.5
    rows[6] = -2.25
    rows[7] = np.arange(32) / 2 - 8
    rows[8] = np.where(np.arange(32) % 2, 3.0, -3.0)
    rows[9, 1:] = 0
    rows[10] = np.abs(rows[10])
    rows[11] = -np.abs(rows[11])
    rows[12] = 65504.0 * np.sign(rows[12])
    (folder / "input.f32").write_bytes(rows.tobytes())
    for kind in [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]:
        (folder / f"{kind.name}.bin").write_bytes(quants.quantize(rows, kind).tobytes())


def add_metadata(w):
    """One key of every type, and an array of every type."""
    for kind, value in {
        V.UINT8: 200, V.INT8: -100, V.UINT16: 60000, V.INT16: -30000, V.UINT32: 4000000000,
        V.INT32: -2000000000, V.FLOAT32: 0.1, V.BOOL: True, V.STRING: "grüße 🦀",
        V.UINT64: 2**63 + 1, V.INT64: -(2**62), V.FLOAT64: 0.1,
    }.items():  # fmt: skip
        name = kind.name.lower()
        w.add_key_value(f"test.{name}", value, kind)
        array = ["", "a", value] if kind == V.STRING else [value, 1 - (kind == V.BOOL)]
        w.add_key_value(f"test.{name}s", array, V.ARRAY, sub_type=kind)


def gguf(folder):
    """`all-types.gguf`: each type's blocks of `dequantize/`, and floats; `split-*`: four tensors,
    each with its number as only element, in three parts."""
    w = GGUFWriter(folder / "all-types.gguf", "llama")
    w.add_quantization_version(2)
    add_metadata(w)
    for kind in HALVES:
        rows = (HERE / "dequantize" / f"{kind.name}.bin").read_bytes()
        rows = np.frombuffer(rows, np.uint8)[: 16 * GGML_QUANT_SIZES[kind][1]].reshape(2, 4, -1)
        w.add_tensor(f"{kind.name.lower()}.weight", rows, raw_dtype=kind)
    floats = (np.arange(12, dtype=np.float32) / 8 - 1).reshape(3, 4)
    w.add_tensor("f32.weight", floats)
    w.add_tensor("f16.weight", floats.astype(np.float16))
    w.add_tensor("bf16.weight", quants.quantize(floats, T.BF16), raw_dtype=T.BF16)
    w.add_tensor("i32.weight", np.arange(5, dtype=np.int32))
    iq1 = np.zeros((1, GGML_QUANT_SIZES[T.IQ1_S][1]), np.uint8)
    w.add_tensor("iq1_s.weight", iq1, raw_dtype=T.IQ1_S)
    finish(w)

    w = GGUFWriter(folder / "split.gguf", "llama", split_max_tensors=2, small_first_shard=True)
    w.add_name("in parts")
    for i in range(4):
        w.add_tensor(f"blk.{i}.weight", np.array([i], np.float32))
    finish(w)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    for make in [dequantize, quantize, gguf]:
        folder = HERE / make.__name__
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)


if __name__ == "__main__":
    main()
