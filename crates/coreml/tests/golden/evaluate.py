"""What a function of a package computes, by the tools of Core ML: their reader of packages and the rules by
which they fold constants, applied to every operation in turn. What they have no rule for is computed here.

Operations are computed in single precision, and their results rounded to half precision if wanted; or on operands in
half precision, on which the tools' rules round inside an operation too, a softmax and an rsqrt three times.
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


MOVES = {"identity", "reshape", "expand_dims", "squeeze", "transpose", "tile", "concat", "stack", "split",
         "slice_by_index", "slice_by_size", "slice_update", "gather"}


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
    """The operations that the tools have no rule for, in single precision; None for all others."""
    operands = {key: wide(value) for key, value in operands.items()}
    if kind == "silu":
        out = operands["x"] / (1 + np.exp(-operands["x"]))
    elif kind == "conv":
        out = conv(**operands)
    elif kind == "scaled_dot_product_attention":
        query, mask = operands["query"], operands.get("attn_mask")
        scores = query @ np.swapaxes(operands["key"], -1, -2) / np.sqrt(np.float32(query.shape[-1]))
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        out = softmax(scores) @ operands["value"]
    elif kind == "slice_update":
        out = operands["x"].copy()
        place = tuple(slice(int(b), int(e)) for b, e in zip(operands["begin"], operands["end"]))
        out[place] = operands["update"]
    else:
        return None
    return out


def wide(value):
    """In single precision, if it is in half precision."""
    return value.astype(np.float32) if getattr(value, "dtype", None) == np.float16 else value


def leaving(function):
    """The values that leave a function or go into a state, and those that they are moved from."""
    found = set(function.outputs)
    for op in reversed(function.operations):
        if op.op_type == "coreml_update_state" or op.op_type in MOVES and found.intersection(op.outputs):
            for var in op.inputs.values():
                found.update(var if isinstance(var, (list, tuple)) else [var])
    return found


def run(program, name, inputs, states, precision="half"):
    """The outputs of function `name`; `states` is changed as it changes them. In `half` precision every result of type
    fp16 is rounded, once; with `steps` the tools' rules get operands in half precision; in `single` precision only what
    leaves the function or goes into a state is rounded, where it is made."""
    function, known = program.functions[name], {}
    halves = leaving(function) if precision == "single" else None
    widened = (lambda value: value) if precision == "steps" else wide
    for key, var in function.inputs.items():
        known[var] = ("state", key) if types.is_state(var.sym_type) else widened(inputs[key])
    value = lambda var: known[var] if var in known else widened(var.val)

    def rounded(var, found):
        kind = var.sym_type.get_primitive() if types.is_tensor(var.sym_type) else var.sym_type
        return np.asarray(found, np.float16 if kind == types.fp16 else None)

    def step(op):
        out, kind = op.outputs[0], op.op_type
        if kind == "const":
            known[out] = widened(out.val)
        elif kind == "constexpr_lut_to_dense" and op.lut.val is None:
            # A table that is itself made of another: the tools look for its values in the file alone.
            known[out] = widened(lut_to_dense(op.indices.val, known[op.lut].astype(np.float16), None))
        elif kind.startswith("constexpr_"):
            known[out] = widened(op.materialized_val_inference())
        elif kind == "read_state":
            known[out] = widened(states[known[op.input][1]])
        elif kind == "coreml_update_state":
            state = states[known[op.state][1]] = rounded(out, value(op.value))
            known[out] = widened(state)
        else:
            operands = {
                key: [value(v) for v in var] if isinstance(var, (list, tuple)) else value(var)
                for key, var in op.inputs.items() if var is not None and not key.startswith("_")
            }
            results = by_numpy(kind, operands)
            if results is None:
                made = getattr(mb, kind)(**operands)
                results = [var.val for var in (made if isinstance(made, (list, tuple)) else [made])]
                assert all(result is not None for result in results), f"no value of {kind} {op.name}"
            else:
                results = [results]
            for var, found in zip(op.outputs, results):
                known[var] = widened(rounded(var, found) if halves is None or var in halves else np.asarray(found))

    with Function({"x": mb.placeholder(shape=(1,), dtype=types.fp16)}, opset_version=function.opset_version):
        for op in function.operations:
            step(op)
    return {var.name: rounded(var, value(var)) for var in function.outputs}
