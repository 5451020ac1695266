#!/usr/bin/env python3
"""Writes the golden files beside it with independent programs: gguf, safetensors, mlx, numpy.

    pip install gguf safetensors mlx numpy && python make.py

Everything is seeded, so a second run changes nothing.
"""

import shutil
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
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


def main():
    for make in [dequantize, quantize]:
        folder = HERE / make.__name__
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)


if __name__ == "__main__":
    main()
