#!/usr/bin/env python3
"""Writes the golden files beside it with independent programs.

    pip install gguf safetensors mlx numpy torch transformers && python make.py

Everything is seeded, so a second run changes nothing.
"""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V
from gguf import GGUFWriter
from gguf import GGML_QUANT_SIZES, quants
from safetensors.numpy import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

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


def sharded(folder):
    """Two shards with an index: plain types, and some that are not computed with."""
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    values = (np.arange(6) / 4 - 0.5).reshape(2, 3)
    first = {
        "a.f32": values.astype(np.float32),
        "a.f16": values.astype(np.float16),
        "a.f64": values,
        "a.i64": np.arange(3),
        "a.scalar": np.array(2.5, np.float32),
    }
    second = {"b.bf16": mx.array(values, dtype=mx.bfloat16), "b.u8": mx.array([1], mx.uint8)}
    save_file(first, folder / one, {"format": "np"})
    mx.save_safetensors(str(folder / two), second, {"format": "mlx"})
    index = {n: one for n in first} | {n: two for n in second}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    write_json(folder / "config.json", {"model_type": "tiny"})


def mlx(folder):
    """`model.safetensors`: a matrix in each of MLX's formats, each a layer of its own;
    `expected/model.safetensors`: what MLX decodes them to, as float32."""
    rng = np.random.default_rng(3)
    config = {"group_size": 64, "bits": 4, "mode": "affine"}
    stored, expected = {}, {}

    def add(layer, w, mode="affine", **how):
        q, scales, *biases = mx.quantize(w, mode=mode, **how)
        if biases and w.shape[0] == 3:
            # A row of odd scales, a row of odd biases.
            odd = mx.array([np.nan, np.inf, -0.0, 6e-8][: scales.shape[-1]]).astype(scales.dtype)
            scales[1, : odd.shape[0]] = odd
            biases[0][2, : odd.shape[0]] = odd
        values = mx.dequantize(q, scales, *biases, mode=mode, **how)
        stored.update({f"{layer}.weight": q, f"{layer}.scales": scales})
        if biases:
            stored[f"{layer}.biases"] = biases[0]
        expected[f"{layer}.weight"] = values.astype(mx.float32)
        if (mode, how) != ("affine", {"bits": 4, "group_size": 64}):
            config[layer] = how | {"mode": mode}

    def matrix(*shape, dtype=mx.float32):
        return mx.array(rng.normal(size=shape).astype(np.float32) * 0.1).astype(dtype)

    for name, dtype in {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}.items():
        for bits in [2, 3, 4, 5, 6, 8]:
            for group_size in [32, 64, 128]:
                w = matrix(3, 128, dtype=dtype)
                add(f"{name}.b{bits}.g{group_size}", w, bits=bits, group_size=group_size)
    add("experts", matrix(2, 4, 64), bits=4, group_size=64)
    add("mxfp4", matrix(2, 64, dtype=mx.bfloat16), mode="mxfp4", bits=4, group_size=32)
    add("mxfp8", matrix(2, 64, dtype=mx.bfloat16), mode="mxfp8", bits=8, group_size=32)
    add("nvfp4", matrix(2, 64, dtype=mx.bfloat16), mode="nvfp4", bits=4, group_size=16)
    stored["norm.weight"] = expected["norm.weight"] = matrix(8)
    config["norm"] = False

    (folder / "expected").mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), stored, {"format": "mlx"})
    mx.save_safetensors(str(folder / "expected" / "model.safetensors"), expected)
    write_json(folder / "config.json", {"quantization": config, "quantization_config": config})


def gpt_oss(folder):
    """Experts in gpt-oss's MXFP4, and what transformers decodes them to."""
    rng = np.random.default_rng(4)
    experts, rows, groups = 2, 3, 2
    blocks = rng.integers(0, 256, (experts, rows, groups, 16), dtype=np.uint8)
    scales = rng.integers(110, 140, (experts, rows, groups), dtype=np.uint8)
    bias = np.zeros((experts, rows), np.float32)
    stored = {"up_proj_blocks": blocks, "up_proj_scales": scales, "up_proj_bias": bias}
    save_file(stored, folder / "model.safetensors")
    # It gives them transposed.
    values = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
    values = values.transpose(1, 2).float().numpy()
    (folder / "expected").mkdir()
    save_file({"up_proj": np.ascontiguousarray(values)}, folder / "expected" / "model.safetensors")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    for make in [dequantize, quantize, gguf, sharded, mlx, gpt_oss]:
        folder = HERE / make.__name__
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)


if __name__ == "__main__":
    main()
