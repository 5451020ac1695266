#!/usr/bin/env python3
"""Makes the packages in this folder with coremltools, and what they compute: `make.py [NAME...]`.

Made with coremltools 9.0, torch 2.15, numpy 2.2 on Linux. What a run makes differs from what the last one made in
names that coremltools draws by lot.
"""

import json
import os
import shutil
import sys

import numpy as np
import torch

import evaluate
from evaluate import ct, mb, types

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = ct.target.iOS18
rng = np.random.default_rng(5)


def half(*shape, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(np.float16)


def tensor(array):
    array = np.asarray(array)
    kind = {"f": "floats", "i": "ints", "u": "ints", "b": "bools"}[array.dtype.kind]
    return {"shape": list(array.shape), kind: array.astype(object).ravel().tolist()}


def save(name, model, calls, expected=None):
    """Writes the package and, for a sequence of calls with one set of states, inputs and outputs."""
    path = os.path.join(HERE, f"{name}.mlpackage")
    shutil.rmtree(path, ignore_errors=True)
    model.save(path)
    spec, program = evaluate.load(path)
    states = {}
    for s in spec.description.state:
        states[s.name] = np.zeros(tuple(s.type.stateType.arrayType.shape), np.float16)
    runs = []
    for i, inputs in enumerate(calls):
        outputs = evaluate.run(program, "main", inputs, states)
        if expected is not None:
            (key, value), = outputs.items()
            outputs = {key: expected[i]}
            print(name, "torch against coremltools:", np.abs(value.astype(float) - expected[i]).max())
        runs.append({"inputs": {k: tensor(v) for k, v in inputs.items()},
                     "outputs": {k: tensor(v) for k, v in outputs.items()}})
    with open(os.path.join(HERE, f"{name}.json"), "w") as file:
        json.dump({"runs": runs}, file)
        file.write("\n")


def convert(program):
    pipeline = ct.PassPipeline.EMPTY
    return ct.convert(program, convert_to="mlprogram", minimum_deployment_target=TARGET,
                      pass_pipeline=pipeline, skip_model_load=True,
                      compute_precision=ct.precision.FLOAT32)


def operations():
    """Every operation of the interpreter in its kinds."""
    specs = [mb.TensorSpec((2, 3, 4, 5), dtype=types.fp16), mb.TensorSpec((3, 1, 5), dtype=types.fp16),
             mb.TensorSpec((2,), dtype=types.int32)]

    @mb.program(input_specs=specs, opset_version=TARGET)
    def program(x, y, i):
        out = []
        positive = mb.add(x=mb.abs(x=x), y=np.float16(0.5))
        for kind in ("exp", "sigmoid", "silu", "tanh", "softsign", "relu", "abs", "cos", "sin", "erf"):
            out.append(getattr(mb, kind)(x=x))
        out += [mb.sqrt(x=positive), mb.rsqrt(x=positive, epsilon=np.float16(1e-3))]
        for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"):
            out.append(mb.gelu(x=x, mode=mode))
        out += [mb.clip(x=x, alpha=np.float16(-0.5), beta=np.float16(0.7)), mb.leaky_relu(x=x, alpha=np.float16(0.1))]
        for kind in ("add", "sub", "mul", "real_div", "maximum", "minimum"):
            out.append(getattr(mb, kind)(x=x, y=y))
            out.append(getattr(mb, kind)(x=y, y=positive))
        out.append(mb.pow(x=positive, y=np.float16(1.5)))
        for kind in ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal"):
            test = getattr(mb, kind)(x=x, y=y)
            out.append(mb.cast(x=test, dtype="fp16"))
            out.append(mb.select(cond=mb.logical_not(x=test), a=x, b=y))
        both = mb.logical_and(x=mb.greater(x=x, y=y), y=mb.less(x=y, y=np.float16(0.3)))
        either = mb.logical_or(x=both, y=mb.less(x=x, y=y))
        out += [mb.cast(x=both, dtype="int32"), mb.cast(x=either, dtype="fp32")]
        for axis in (-1, 1, 0):
            out += [mb.softmax(x=x, axis=axis), mb.reduce_argmax(x=x, axis=axis, keep_dims=axis == 1)]
            out += mb.topk(x=x, k=2, axis=axis, ascending=axis == 0)
        for kind in ("mean", "sum", "max", "min", "sum_square"):
            for axes, keep in (([1], True), ([-1, 0], False), ([0, 1, 2, 3], False)):
                out.append(getattr(mb, f"reduce_{kind}")(x=x, axes=axes, keep_dims=keep))
        out.append(mb.layer_norm(x=x, axes=[-1], gamma=half(5), beta=half(5), epsilon=np.float16(1e-3)))
        out.append(mb.layer_norm(x=x, axes=[2, 3], epsilon=np.float16(1e-3)))
        out.append(mb.linear(x=x, weight=half(7, 5), bias=half(7)))
        out.append(mb.linear(x=x, weight=half(3, 5)))
        out.append(mb.matmul(x=x, y=mb.transpose(x=x, perm=[0, 1, 3, 2])))
        out.append(mb.matmul(x=x, y=x, transpose_x=True))
        out.append(mb.matmul(x=x, y=y, transpose_y=True))
        out.append(mb.conv(x=x, weight=half(6, 3, 1, 1), bias=half(6)))
        out.append(mb.conv(x=x, weight=half(6, 1, 2, 3), groups=3, strides=[1, 2], pad_type="custom",
                           pad=[1, 0, 2, 1], dilations=[2, 1]))
        out += [mb.gather(x=x, indices=i, axis=1), mb.gather(x=x, indices=[[3, -1], [0, 2]], axis=2)]
        out += [mb.reshape(x=x, shape=[0, -1, 10]), mb.transpose(x=x, perm=[3, 0, -2, 1])]
        out += [mb.squeeze(x=y, axes=[1]), mb.expand_dims(x=y, axes=[0, -1])]
        out += [mb.concat(values=[x, x, positive], axis=-2), mb.stack(values=[y, y], axis=1)]
        out += mb.split(x=x, num_splits=2, axis=2)
        out += mb.split(x=x, split_sizes=[1, 3, 1], axis=-1)
        out.append(mb.tile(x=y, reps=[2, 3, 1]))
        out.append(mb.pad(x=x, pad=[1, 0, 2, 1], mode="constant", constant_val=np.float16(0.25)))
        out.append(mb.slice_by_index(x=x, begin=[0, 1, 0, 4], end=[2, 3, -1, 0], stride=[1, 1, 2, -2]))
        out.append(mb.slice_by_index(x=x, begin=[0, -1, 0, 1], end=[0, 0, 3, 0], begin_mask=[True, False, False, False],
                                     end_mask=[True, False, False, True], squeeze_mask=[False, True, False, False]))
        out.append(mb.slice_by_size(x=x, begin=[0, 1, 2, 0], size=[2, -1, 2, 3]))
        place = mb.concat(values=[i, [1], [0]], axis=0)
        end = mb.add(x=place, y=[1, 1, 2, 5])
        update = mb.slice_by_size(x=x, begin=[0, 0, 0, 0], size=[1, 1, 2, 5])
        out.append(mb.slice_update(x=positive, update=update, begin=place, end=end))
        out += [mb.shape(x=x), mb.cast(x=mb.cast(x=x, dtype="int32"), dtype="fp16"), mb.identity(x=i)]
        out += [mb.add(x=i, y=[3]), mb.mul(x=i, y=i), mb.maximum(x=i, y=[1])]
        mask = mb.cast(x=mb.greater(x=mb.matmul(x=x, y=x, transpose_y=True), y=np.float16(-1)), dtype="bool")
        out.append(mb.scaled_dot_product_attention(query=x, key=x, value=x, attn_mask=mask))
        out.append(mb.scaled_dot_product_attention(query=x, key=positive, value=x))
        # An output must be the result of an operation, and only some types can be one.
        return tuple(mb.identity(x=o, name=f"out_{n}") for n, o in enumerate(out))

    calls = [{"x": half(2, 3, 4, 5), "y": half(3, 1, 5), "i": np.array([1, 2], np.int32)}]
    save("operations", convert(program), calls)


def quantized():
    """Weights in every form that the compiler or coremltools writes."""
    o, i = 16, 24

    def scaled(dtype, low, high, block, offset):
        data = rng.integers(low, high, (o, i)).astype(dtype)
        scale = half(o // block[0], i // block[1], scale=0.1)
        kwargs = {"offset": rng.integers(max(low, 0), high, scale.shape).astype(dtype)} if offset else {}
        return mb.constexpr_blockwise_shift_scale(data=data, scale=scale, **kwargs)

    def table(bits, groups):
        uint = types.type_mapping.string_to_nptype(f"uint{bits}")
        indices = rng.integers(0, 2**bits, (o, i)).astype(uint)
        return mb.constexpr_lut_to_dense(indices=indices, lut=half(*groups, 2**bits, 1, scale=0.1))

    @mb.program(input_specs=[mb.TensorSpec((2, i), dtype=types.fp16)], opset_version=TARGET)
    def program(x):
        int4, uint4 = (types.type_mapping.string_to_nptype(t) for t in ("int4", "uint4"))
        weights = [
            scaled(np.int8, -127, 128, (1, i), False), scaled(np.uint8, 0, 256, (1, 8), True),
            scaled(int4, -8, 8, (1, i), False), scaled(int4, -8, 8, (1, 8), True),
            scaled(uint4, 0, 16, (o, i), True), scaled(uint4, 0, 16, (4, 1), False),
        ]
        weights += [table(bits, (1, 1)) for bits in (1, 2, 3, 4, 6, 8)]
        weights += [table(4, (o // 8, 1)), table(6, (o // 4, i // 12))]
        # The table of this one is quantized itself.
        lut = mb.constexpr_blockwise_shift_scale(data=rng.integers(-127, 128, (1, 1, 16, 1)).astype(np.int8),
                                                 scale=half(1, 1, 1, 1, scale=0.01))
        weights.append(mb.constexpr_lut_to_dense(indices=rng.integers(0, 16, (o, i)).astype(uint4), lut=lut))
        return tuple(mb.linear(x=x, weight=w, name=f"out_{n}") for n, w in enumerate(weights))

    save("quantized", convert(program), [{"x": half(2, i)}])


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class Block(torch.nn.Module):
    """A layer of a decoder as PyTorch code has it."""

    WIDTH, HEADS = 32, 4

    def __init__(self):
        super().__init__()
        w = self.WIDTH
        self.before, self.after = Norm(w), Norm(w)
        self.qkv, self.out = torch.nn.Linear(w, 3 * w), torch.nn.Linear(w, w, bias=False)
        self.gate, self.up, self.down = (torch.nn.Linear(a, b, bias=False) for a, b in ((w, 48), (w, 48), (48, w)))

    def forward(self, x, mask):
        heads = lambda t: t.reshape(1, x.shape[1], self.HEADS, -1).transpose(1, 2)
        q, k, v = (heads(t) for t in self.qkv(self.before(x)).split(self.WIDTH, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, x.shape[1], self.WIDTH))
        inner = self.after(x)
        return x + self.down(torch.nn.functional.silu(self.gate(inner)) * self.up(inner))


def block():
    """A layer of PyTorch, converted as a user of coremltools would."""
    torch.manual_seed(3)

    module = Block().eval()
    x = torch.from_numpy(half(1, 6, 32)).float()
    mask = torch.full((6, 6), -1e4).triu(1)
    traced = torch.jit.trace(module, (x, mask))
    fp16 = np.float16
    model = ct.convert(traced, inputs=[ct.TensorType("x", x.shape, dtype=fp16), ct.TensorType("mask", mask.shape, dtype=fp16)],
                       outputs=[ct.TensorType("y", dtype=fp16)], minimum_deployment_target=TARGET, skip_model_load=True)
    calls = [{"x": x.numpy().astype(fp16), "mask": mask.numpy().astype(fp16)}]
    with torch.no_grad():
        save("block", model, calls, [module(x, mask).numpy()])


def stateful():
    """A cache that grows by a row a call."""

    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(4, 8, dtype=torch.float16))
            self.register_buffer("calls", torch.zeros(1, dtype=torch.float16))

        def forward(self, x):
            self.rows[1:3, 2:6] = x
            self.rows.mul_(2)
            self.calls += 1
            return self.rows @ self.rows.T + self.calls

    x = torch.from_numpy(half(2, 4))
    traced = torch.jit.trace(Cache().eval(), (x,))
    states = [ct.StateType(ct.TensorType(shape=s, dtype=np.float16), name=n) for n, s in (("rows", (4, 8)), ("calls", (1,)))]
    model = ct.convert(traced, inputs=[ct.TensorType("x", x.shape, dtype=np.float16)],
                       outputs=[ct.TensorType("y", dtype=np.float16)], states=states,
                       minimum_deployment_target=TARGET, skip_model_load=True)
    save("stateful", model, [{"x": half(2, 4)} for _ in range(3)])


class Lookup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)

    def forward(self, ids):
        return self.table(ids)


def lookup():
    """An embedding whose input may have one of two shapes."""
    torch.manual_seed(5)
    traced = torch.jit.trace(Lookup().eval(), torch.zeros((1, 1), dtype=torch.int32))
    shape = ct.EnumeratedShapes(shapes=[[1, 1], [1, 4]], default=[1, 1])
    model = ct.convert(traced, inputs=[ct.TensorType("ids", shape, dtype=np.int32)],
                       outputs=[ct.TensorType("y", dtype=np.float16)], minimum_deployment_target=TARGET,
                       skip_model_load=True)
    save("lookup", model, [{"ids": np.array([ids], np.int32)} for ids in ([7], [49, 0, 3, 3])])


class Layer(torch.nn.Module):
    """A layer that writes its keys and values into caches, with attention as products."""

    WIDTH, HEADS, GROUPS, DIM, PLACES = 32, 4, 2, 12, 20

    def __init__(self):
        super().__init__()
        w, dim = self.WIDTH, self.DIM
        self.before, self.after = Norm(w), Norm(w)
        self.q = torch.nn.Linear(w, self.HEADS * dim)
        self.k, self.v = (torch.nn.Linear(w, self.GROUPS * dim) for _ in range(2))
        self.out = torch.nn.Linear(self.HEADS * dim, w, bias=False)
        self.gate, self.up, self.down = (torch.nn.Linear(a, b, bias=False) for a, b in ((w, 48), (w, 48), (48, w)))

    def rotated(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, x, place, mask, cos, sin, keys, values):
        tokens = x.shape[1]
        inner = self.before(x)
        heads = lambda t, n: t.view(1, tokens, n, self.DIM).transpose(1, 2)
        q, k = heads(self.q(inner), self.HEADS), heads(self.k(inner), self.GROUPS)
        q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
        # The new ones at their places, the others as they were.
        for cache, new in ((keys, k), (values, heads(self.v(inner), self.GROUPS))):
            cache.mul_(1 - place.sum(-1, keepdim=True))
            cache.add_(place @ new)
        repeated = lambda t: t.repeat_interleave(self.HEADS // self.GROUPS, 1)
        scores = q @ repeated(keys).transpose(2, 3) / self.DIM**0.5 + mask
        mixed = torch.softmax(scores, -1) @ repeated(values)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, tokens, -1))
        inner = self.after(x)
        return x + self.down(torch.nn.functional.silu(self.gate(inner)) * self.up(inner))


class Decoder(torch.nn.Module):
    """Two layers with four states, and a head."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = Norm(Layer.WIDTH), torch.nn.Linear(Layer.WIDTH, 100, bias=False)
        for name in ("k_0", "v_0", "k_1", "v_1"):
            self.register_buffer(name, torch.zeros(1, Layer.GROUPS, Layer.PLACES, Layer.DIM))

    def forward(self, x, place, mask, cos, sin):
        for i, layer in enumerate(self.layers):
            x = layer(x, place, mask, cos, sin, getattr(self, f"k_{i}"), getattr(self, f"v_{i}"))
        return self.head(self.norm(x))


def decoder():
    """A decoder of PyTorch with a cache, called for three tokens at a time."""
    torch.manual_seed(4)
    module, tokens, fp16 = Decoder().eval(), 3, np.float16
    calls = []
    for call in range(3):
        at = np.arange(tokens) + call * tokens
        place = np.zeros((1, 1, Layer.PLACES, tokens), fp16)
        place[0, 0, at, np.arange(tokens)] = 1
        mask = np.where(np.arange(Layer.PLACES)[None] <= at[:, None], 0, -1e4).astype(fp16)[None, None]
        angles = at[:, None] / 100 ** (np.arange(Layer.DIM) % (Layer.DIM // 2) / Layer.DIM)
        tables = [f(angles).astype(fp16)[None, None] for f in (np.cos, np.sin)]
        calls.append(dict(zip(("x", "place", "mask", "cos", "sin"), (half(1, tokens, 32), place, mask, *tables))))
    example = tuple(torch.from_numpy(value).float() for value in calls[0].values())
    with torch.no_grad():
        traced = torch.jit.trace(module, example)
    inputs = [ct.TensorType(name, value.shape, dtype=fp16) for name, value in calls[0].items()]
    states = [ct.StateType(ct.TensorType(shape=(1, Layer.GROUPS, Layer.PLACES, Layer.DIM), dtype=fp16), name=name)
              for name in ("k_0", "v_0", "k_1", "v_1")]
    model = ct.convert(traced, inputs=inputs, outputs=[ct.TensorType("y", dtype=fp16)], states=states,
                       minimum_deployment_target=TARGET, skip_model_load=True)
    for name in ("k_0", "v_0", "k_1", "v_1"):
        getattr(module, name).zero_()
    with torch.no_grad():
        expected = [module(*(torch.from_numpy(value).float() for value in call.values())).numpy() for call in calls]
    save("decoder", model, calls, expected)


if __name__ == "__main__":
    made = {f.__name__: f for f in (operations, quantized, block, stateful, lookup, decoder)}
    for name in sys.argv[1:] or made:
        made[name]()
