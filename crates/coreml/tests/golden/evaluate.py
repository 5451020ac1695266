"""What a function of a package computes, by the tools of Core ML: their reader of packages and the rules by
which they fold constants, applied to every operation in turn. Those that they have no rule for are torch's.
"""

import contextlib
import io
import logging
import os

logging.disable(logging.CRITICAL)

with contextlib.redirect_stderr(io.StringIO()):
    import coremltools as ct
    import numpy as np
    import torch
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.frontend.milproto import load as milproto
    from coremltools.converters.mil.mil import Function, types
    from coremltools.optimize._utils import lut_to_dense


def load(package):
    """The specification and the program of a package."""
    spec = ct.utils.load_spec(package)
    weights = os.path.join(package, "Data/com.apple.CoreML/weights")
    return spec, milproto.load(spec, spec.specificationVersion, weights)


def by_torch(kind, operands):
    """The operations without a rule of their own."""
    if kind not in ("silu", "conv", "scaled_dot_product_attention", "slice_update"):
        return None
    x = torch.tensor(operands["x"] if "x" in operands else operands["query"])
    wide = x.float()
    if kind == "silu":
        out = torch.nn.functional.silu(wide)
    elif kind == "conv":
        weight, bias = (torch.tensor(operands[k]).float() if operands.get(k) is not None else None
                        for k in ("weight", "bias"))
        top, bottom, left, right = operands["pad"] if operands.get("pad_type") == "custom" else [0] * 4
        wide = torch.nn.functional.pad(wide, (int(left), int(right), int(top), int(bottom)))
        pair = lambda name: [int(n) for n in operands.get(name, [1, 1])]
        out = torch.nn.functional.conv2d(wide, weight, bias, pair("strides"), 0, pair("dilations"),
                                         int(operands.get("groups", 1)))
    elif kind == "scaled_dot_product_attention":
        mask = operands.get("attn_mask")
        mask = None if mask is None else torch.tensor(mask)
        mask = mask.float() if mask is not None and mask.dtype != torch.bool else mask
        key, value = (torch.tensor(operands[k]).float() for k in ("key", "value"))
        out = torch.nn.functional.scaled_dot_product_attention(wide, key, value, mask)
    else:
        out = x.numpy().copy()
        place = tuple(slice(int(b), int(e)) for b, e in zip(operands["begin"], operands["end"]))
        out[place] = operands["update"]
        return out
    return out.numpy().astype(x.numpy().dtype)


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
            found = by_torch(kind, operands)
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
