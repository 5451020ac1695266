#!/usr/bin/env python3
"""Looks at packages that the compiler wrote, with Core ML's own tools: `check.py FOLDER`.

Each `NAME.mlpackage` must be read by them without a field that they do not know, must have the types that they
infer, and must compute what `NAME.json` says that our interpreter does: with every result rounded to half precision,
with every step inside of operations rounded too, and in single precision.
"""

import glob
import json
import os
import sys

import evaluate
from evaluate import ct, np, types

from coremltools.converters.mil.mil.types.symbolic import any_symbolic
from coremltools.libmilstoragepython import _BlobStorageReader as Storage
from coremltools.libmodelpackage import ModelPackage
from coremltools.proto import MIL_pb2, Model_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

# Sums in another order are now and then rounded to the neighbouring number, from which later results differ more.
TOLERANCE = 2e-3


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
        shape = tuple(d.constant.size if d.HasField("constant") else None for d in tensor.dimensions)
        yield output.name, (MIL_pb2.DataType.Name(tensor.dataType), shape)


def check_types(spec, program, name):
    """Core ML's types of every value are those that the package declares, and nothing had to be cast."""
    function = spec.mlProgram.functions[name]
    operations = function.block_specializations[function.opset].operations
    types_of = dict(pair for operation in operations for pair in declared(operation))
    names = {v: k for k, v in types.PROTO_TO_BUILTIN_TYPE.items()}
    size = lambda n: None if any_symbolic([n]) else int(n)
    seen = 0
    for op in program.functions[name].operations:
        for var in op.outputs:
            if var.name not in types_of:
                continue
            kind = var.sym_type.get_primitive() if types.is_tensor(var.sym_type) else var.sym_type
            shape = tuple(map(size, var.sym_type.get_shape())) if types.is_tensor(var.sym_type) else ()
            dtype = "STRING" if kind == types.str else MIL_pb2.DataType.Name(names[kind])
            assert types_of[var.name] == (dtype, shape), f"{name}/{var.name}: {types_of[var.name]}, not {(dtype, shape)}"
            seen += 1
    casts = [sum(kind == "cast" for kind in kinds) for kinds in (
        (op.op_type for op in program.functions[name].operations), (op.type for op in operations))]
    assert casts[0] == casts[1], f"{name}: values had to be cast"
    return seen


def tensor(data, dtype):
    return np.array(data["floats"] if "floats" in data else data["ints"], dtype).reshape(data["shape"])


def distance(found, expected):
    """The largest difference, as a part of the largest number if that is above 1."""
    found, expected = (value.astype(np.float32) for value in (found, expected))
    return np.abs(found - expected).max() / max(1, np.abs(expected).max())


def computed(program, name, run, precision):
    """Results and states of a function as the tools compute them."""
    inputs, states = {}, {}
    for key, var in program.functions[name].inputs.items():
        if types.is_state(var.sym_type):
            states[key] = tensor(run["states"][key], np.float16)
        else:
            inputs[key] = tensor(run["inputs"][key], types.nptype_from_builtin(var.sym_type.get_primitive()))
    found = evaluate.run(program, name, inputs, states, precision)
    return found | {f"state {key}": value for key, value in states.items()}


def check_values(program, name, run):
    """How far our results are from the tools' in each precision, and how far ours in half precision, and with every step
    in it, are from theirs in single precision."""
    found, ours = {}, {}
    for kind in ("half", "steps", "single"):
        found[kind] = computed(program, name, run, kind)
        results = run[kind]["outputs"] | {f"state {key}": value for key, value in run[kind]["states"].items()}
        ours[kind] = {key: tensor(value, np.float32) for key, value in results.items()}
        assert found[kind].keys() == ours[kind].keys(), f"{name}: {found[kind].keys()}, not {ours[kind].keys()}"
        for key, value in ours[kind].items():
            shape = found[kind][key].shape
            assert value.shape == shape, f"{name}/{key}: {shape}, not {value.shape}"
            difference = distance(found[kind][key], value)
            assert difference <= TOLERANCE, f"{name}/{key}: off by {difference} in {kind} precision"
    most = lambda a, b: max(distance(a[key], b[key]) for key in b)
    return [most(found[kind], ours[kind]) for kind in ours] + [most(x, found["single"]) for x in (ours["half"], ours["steps"])]


def main(folder):
    packages = sorted(glob.glob(os.path.join(folder, "*.mlpackage")))
    assert packages, f"no packages in {folder}"
    worst = np.zeros(5)
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
        for name, run in runs.items():
            seen, far = check_types(spec, program, name), check_values(program, name, run)
            worst = np.maximum(worst, far)
            print(f"{os.path.basename(path):24} {name:16} {seen:5} values, off by "
                  "{:.1e}, {:.1e} in steps, {:.1e} single".format(*far))
    print("Off by at most {:.1e} in half precision, {:.1e} with every step in half precision and {:.1e} in single "
          "precision, from which half precision is {:.1e} away, and {:.1e} with every step.".format(*worst))


if __name__ == "__main__":
    main(sys.argv[1])
