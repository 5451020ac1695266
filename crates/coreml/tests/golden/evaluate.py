"""What a function of a package computes, by the tools of Core ML: their reader of packages and the rules by
which they fold constants, applied to every operation in turn. What they
have no rule for is computed here.
"""

import contextlib
import io
import logging
import os

logging.disable(logging.CRITICAL)

with contextlib.redirect_stderr(io.StringIO()):
    import coremltools as ct
    import numpy as np
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.frontend.milproto import load as milproto
    from coremltools.converters.mil.mil import Function, types
    from coremltools.optimize._utils import lut_to_dense


def load(package):
    """The specification and the program of a package."""
    spec = ct.utils.load_spec(package)
    weights = os.path.join(package, "Data/com.apple.CoreML/weights")
    return spec, milproto.load(spec, spec.specificationVersion, weights)


def softmax(x, axis=-1):
    shares = np.exp(x - x.max(axis, keepdims=True))
    return shares / shares.sum(axis, keepdims=True)


def conv(x, weight, bias=None, strides=(1, 1), pad_type="valid", pad=(0, 0, 0, 0), dilations=(1, 1), groups=1):
    """By one product for each point of the kernel."""
    if pad_type == "custom":
        x = np.pad(x, ((0, 0), (0, 0), tuple(pad[:2]), tuple(pad[2:])))
    images, channels = x.shape[:2]
    outs, per_group, *kernel = weight.shape
    size = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, strides, dilations)]
    grouped = weight.reshape(groups, outs // groups, per_group, *kernel)
    out = np.zeros((images, groups, outs // groups, *size), np.float32)
    for i, j in np.ndindex(*kernel):
        taken = x[:, :, i * dilations[0]:, j * dilations[1]:][:, :, ::strides[0], ::strides[1]][:, :, :size[0], :size[1]]
        taken = taken.reshape(images, groups, per_group, *size)
        out += np.einsum("goc,ngchw->ngohw", grouped[..., i, j], taken)
    out = out.reshape(images, outs, *size)
    return out if bias is None else out + bias[None, :, None, None]


def by_numpy(kind, operands):
    """The operations without a rule of their own, in single precision, and those whose rule rounds to half precision
    again and again on the way; None for all others."""
    wide = {k: v.astype(np.float32) if getattr(v, "dtype", None) == np.float16 else v for k, v in operands.items()}
    if kind == "silu":
        out = wide["x"] / (1 + np.exp(-wide["x"]))
    elif kind == "softmax":
        out = softmax(wide["x"], int(wide.get("axis", -1)))
    elif kind == "rsqrt":
        out = 1 / np.sqrt(wide["x"] + np.float32(wide.get("epsilon", 1e-12)))
    elif kind == "gelu" and wide.get("mode") == "TANH_APPROXIMATION":
        x = wide["x"]
        out = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.float32(np.pi)) * (x + 0.044715 * x**3)))
    elif kind == "conv":
        out = conv(**wide)
    elif kind == "scaled_dot_product_attention":
        query, mask = wide["query"], wide.get("attn_mask")
        scores = query @ np.swapaxes(wide["key"], -1, -2) / np.sqrt(np.float32(query.shape[-1]))
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        out = softmax(scores) @ wide["value"]
    elif kind == "slice_update":
        out = operands["x"].copy()
        place = tuple(slice(int(b), int(e)) for b, e in zip(operands["begin"], operands["end"]))
        out[place] = operands["update"]
    else:
        return None
    return out.astype(next(v.dtype for k, v in operands.items() if k in ("x", "query")))


def run(program, name, inputs, states):
    """The outputs of function `name`; `states` is changed as it changes them."""
    function, known = program.functions[name], {}
    for key, var in function.inputs.items():
        known[var] = ("state", key) if types.is_state(var.sym_type) else inputs[key]
    value = lambda var: known[var] if var in known else var.val

    def step(op):
        out, kind = op.outputs[0], op.op_type
        if kind == "const":
            known[out] = out.val
        elif kind == "constexpr_lut_to_dense" and op.lut.val is None:
            known[out] = lut_to_dense(op.indices.val, known[op.lut], None)
        elif kind.startswith("constexpr_"):
            known[out] = op.materialized_val_inference()
        elif kind == "read_state":
            known[out] = states[known[op.input][1]].copy()
        elif kind == "coreml_update_state":
            states[known[op.state][1]] = np.array(value(op.value))
            known[out] = states[known[op.state][1]].copy()
        else:
            operands = {
                key: [value(v) for v in var] if isinstance(var, (list, tuple)) else value(var)
                for key, var in op.inputs.items() if var is not None and not key.startswith("_")
            }
            found = by_numpy(kind, operands)
            if found is not None:
                known[out] = found
                return
            result = getattr(mb, kind)(**operands)
            for var, made in zip(op.outputs, result if isinstance(result, (list, tuple)) else [result]):
                assert made.val is not None, f"no value of {kind} {op.name}"
                known[var] = np.asarray(made.val)

    with Function({"x": mb.placeholder(shape=(1,), dtype=types.fp16)}, opset_version=function.opset_version):
        for op in function.operations:
            step(op)
    return {var.name: np.asarray(value(var)) for var in function.outputs}
