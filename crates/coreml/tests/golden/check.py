#!/usr/bin/env python3
"""Looks at packages that the compiler wrote, with Core ML's own tools: `check.py FOLDER`.

Each `NAME.mlpackage` must be read by them without a field that they do not know, must have the types that they
infer, and must compute what `NAME.json` says that our interpreter does.
"""

import glob
import json
import os
import sys

import evaluate
from evaluate import ct, np, types

from coremltools.libmilstoragepython import _BlobStorageReader as Storage
from coremltools.libmodelpackage import ModelPackage
from coremltools.proto import MIL_pb2, Model_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

TOLERANCE = 2e-3
# Of mixtures: sums over experts, in half precision after each, add up what sums in another order differ by.
MIXTURES = {"qwen3-moe": 4e-3, "gpt-oss": 4e-3}


def unknown_fields(message, path):
    for field in UnknownFieldSet(message):
        raise SystemExit(f"{path}: field {field.field_number} is not known")
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = value.values() if field.message_type.fields_by_name["value"].message_type else []
        else:
            inner = value if field.is_repeated else [value]
        for each in inner:
            unknown_fields(each, f"{path}.{field.name}")


def declared(operation):
    for output in operation.outputs:
        tensor = output.type.tensorType
        shape = tuple(d.constant.size for d in tensor.dimensions)
        yield output.name, (MIL_pb2.DataType.Name(tensor.dataType), shape)


def check_types(spec, program, name):
    """Core ML's types of every value are those that the package declares, and nothing had to be cast."""
    function = spec.mlProgram.functions[name]
    operations = function.block_specializations[function.opset].operations
    types_of = dict(pair for operation in operations for pair in declared(operation))
    names = {v: k for k, v in types.PROTO_TO_BUILTIN_TYPE.items()}
    seen = 0
    for op in program.functions[name].operations:
        for var in op.outputs:
            if var.name not in types_of:
                continue
            kind = var.sym_type.get_primitive() if types.is_tensor(var.sym_type) else var.sym_type
            shape = tuple(int(n) for n in var.sym_type.get_shape()) if types.is_tensor(var.sym_type) else ()
            dtype = "STRING" if kind == types.str else MIL_pb2.DataType.Name(names[kind])
            assert types_of[var.name] == (dtype, shape), f"{name}/{var.name}: {types_of[var.name]}, not {(dtype, shape)}"
            seen += 1
    casts = [sum(kind == "cast" for kind in kinds) for kinds in (
        (op.op_type for op in program.functions[name].operations), (op.type for op in operations))]
    assert casts[0] == casts[1], f"{name}: values had to be cast"
    return seen


def tensor(data, dtype):
    return np.array(data["floats"] if "floats" in data else data["ints"], dtype).reshape(data["shape"])


def check_values(program, name, run, tolerance):
    function = program.functions[name]
    inputs, states = {}, {}
    for key, var in function.inputs.items():
        if types.is_state(var.sym_type):
            states[key] = tensor(run["states"][key], np.float16)
        else:
            inputs[key] = tensor(run["inputs"][key], types.nptype_from_builtin(var.sym_type.get_primitive()))
    found = evaluate.run(program, name, inputs, states)
    found.update({f"state {key}": value for key, value in states.items()})
    worst = 0
    expected = run["outputs"] | {f"state {key}": value for key, value in run.get("states_after", {}).items()}
    assert found.keys() == expected.keys(), f"{name}: {found.keys()}, not {expected.keys()}"
    for key, value in expected.items():
        value = tensor(value, np.float32)
        assert value.shape == found[key].shape, f"{name}/{key}: {found[key].shape}, not {value.shape}"
        difference = np.abs(found[key].astype(np.float32) - value).max() / max(1, np.abs(value).max())
        assert difference <= tolerance, f"{name}/{key}: off by {difference}"
        worst = max(worst, difference)
    return worst


def main(folder):
    packages = sorted(glob.glob(os.path.join(folder, "*.mlpackage")))
    assert packages, f"no packages in {folder}"
    for path in packages:
        assert ModelPackage.isValid(path), f"{path}: no package by its manifest"
        root = ModelPackage(path).getRootModel().path()
        message = Model_pb2.Model()
        with open(root, "rb") as file:
            message.ParseFromString(file.read())
        unknown_fields(message, os.path.basename(path))
        weights = os.path.join(os.path.dirname(root), "weights/weight.bin")
        assert not os.path.exists(weights) or Storage(weights)
        spec, program = evaluate.load(path)
        with open(path.removesuffix("mlpackage") + "json") as file:
            runs = json.load(file)
        assert set(runs) == set(spec.mlProgram.functions), path
        mixtures = (most for start, most in MIXTURES.items() if os.path.basename(path).startswith(start))
        tolerance = next(mixtures, TOLERANCE)
        for name, run in runs.items():
            seen, worst = check_types(spec, program, name), check_values(program, name, run, tolerance)
            print(f"{os.path.basename(path):24} {name:16} {seen:5} values, off by {worst:.1e} at most")


if __name__ == "__main__":
    main(sys.argv[1])
