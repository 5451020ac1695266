//! MIL programs as Protocol Buffers: the messages of Core ML's `MIL.proto`, by its field numbers.
//!
//! A field that is not known here is refused: an operation with a part left out is another operation.

mod values;

use std::collections::BTreeMap;

use self::values::{read_type, read_value, write_value, write_varying_type};
use super::program::{Binding, Block, Function, Named, Op, Program};
use super::value::Value;
use super::varying::Varying;
use crate::wire::{Field, Reader, Writer, entry};
use crate::{Error, Result};

/// The version of `Program` that is read and written.
const PROGRAM_VERSION: i32 = 1;

/// Reads a `Program`.
pub(crate) fn read_program(mut reader: Reader<'_>) -> Result<Program> {
    let (mut program, mut version) = (Program::default(), 0);
    while let Some(field) = reader.next()? {
        match field.number {
            1 => version = field.int32()?,
            2 => {
                let (name, function) = entry(&field, "Function")?;
                let function = function.map(read_function).transpose()?.unwrap_or_default();
                if program.functions.insert(name.clone(), function).is_some() {
                    return Err(reader.error(format!("has two functions {name:?}")));
                }
            }
            // Its documentation is for people who read the file it was made of.
            3 => drop(field.string()?),
            4 => read_attribute(&field, &mut program.attributes)?,
            _ => return Err(reader.unknown(&field)),
        }
    }
    if version != PROGRAM_VERSION {
        return Err(Error::Unsupported {
            what: format!("version {version} of MIL programs"),
            instead: format!("version {PROGRAM_VERSION} is"),
        });
    }
    Ok(program)
}

/// Writes a `Program`, in whose functions some dimensions may be of unknown size.
pub(crate) fn write_program(
    program: &Program,
    varying: &BTreeMap<String, Varying>,
    w: &mut Writer,
) {
    let fixed = Varying::new();
    w.number(1, PROGRAM_VERSION as u64);
    for (name, function) in &program.functions {
        let varying = varying.get(name).unwrap_or(&fixed);
        w.entry(2, name, |w| write_function(function, varying, w));
    }
    write_attributes(4, &program.attributes, w);
}

fn read_attribute(field: &Field<'_>, attributes: &mut BTreeMap<String, Value>) -> Result<()> {
    let (name, value) = entry(field, "Value")?;
    let value = value.ok_or_else(|| Error::malformed(format!("attribute {name:?} is empty")))?;
    attributes.insert(name, read_value(value)?);
    Ok(())
}

fn write_attributes(field: u32, attributes: &BTreeMap<String, Value>, w: &mut Writer) {
    for (name, value) in attributes {
        w.entry(field, name, |w| write_value(value, w));
    }
}

fn read_function(mut reader: Reader<'_>) -> Result<Function> {
    let mut function = Function::default();
    let mut bodies = Vec::new();
    while let Some(field) = reader.next()? {
        match field.number {
            1 => function.inputs.push(read_named(field.message("NamedValueType")?)?),
            2 => function.opset = field.string()?,
            3 => {
                let (opset, block) = entry(&field, "Block")?;
                bodies.push((opset, block.map(read_block).transpose()?.unwrap_or_default()));
            }
            4 => read_attribute(&field, &mut function.attributes)?,
            _ => return Err(reader.unknown(&field)),
        }
    }
    match <[_; 1]>::try_from(bodies) {
        Ok([(opset, body)]) if opset == function.opset => {
            function.body = body;
            Ok(function)
        }
        Ok([(opset, _)]) => {
            let problem = format!("is for {:?}, its only block for {opset:?}", function.opset);
            Err(reader.error(problem))
        }
        Err(bodies) => Err(Error::Unsupported {
            what: format!("a function of {} blocks", bodies.len()),
            instead: "functions with one, for their own set of operations, are".into(),
        }),
    }
}

fn write_function(function: &Function, varying: &Varying, w: &mut Writer) {
    for input in &function.inputs {
        w.message(1, |w| write_named(input, varying, w));
    }
    w.string(2, &function.opset);
    w.entry(3, &function.opset, |w| write_block(&function.body, varying, w));
    write_attributes(4, &function.attributes, w);
}

fn read_block(mut reader: Reader<'_>) -> Result<Block> {
    let mut block = Block::default();
    while let Some(field) = reader.next()? {
        match field.number {
            1 => block.inputs.push(read_named(field.message("NamedValueType")?)?),
            2 => block.outputs.push(field.string()?),
            3 => block.ops.push(read_op(field.message("Operation")?)?),
            4 => read_attribute(&field, &mut block.attributes)?,
            _ => return Err(reader.unknown(&field)),
        }
    }
    Ok(block)
}

fn write_block(block: &Block, varying: &Varying, w: &mut Writer) {
    for input in &block.inputs {
        w.message(1, |w| write_named(input, varying, w));
    }
    for output in &block.outputs {
        w.bytes(2, output.as_bytes());
    }
    for op in &block.ops {
        w.message(3, |w| write_op(op, varying, w));
    }
    write_attributes(4, &block.attributes, w);
}

fn read_op(mut reader: Reader<'_>) -> Result<Op> {
    let mut op = Op::default();
    while let Some(field) = reader.next()? {
        match field.number {
            1 => op.kind = field.string()?,
            2 => {
                let (name, argument) = entry(&field, "Argument")?;
                let bindings = argument.map(read_argument).transpose()?.unwrap_or_default();
                op.inputs.insert(name, bindings);
            }
            3 => op.outputs.push(read_named(field.message("NamedValueType")?)?),
            4 => op.blocks.push(read_block(field.message("Block")?)?),
            5 => read_attribute(&field, &mut op.attributes)?,
            _ => return Err(reader.unknown(&field)),
        }
    }
    Ok(op)
}

fn write_op(op: &Op, varying: &Varying, w: &mut Writer) {
    w.string(1, &op.kind);
    for (name, bindings) in &op.inputs {
        w.entry(2, name, |w| {
            for binding in bindings {
                w.message(1, |w| match binding {
                    Binding::Name(name) => w.bytes(1, name.as_bytes()),
                    Binding::Value(value) => w.message(2, |w| write_value(value, w)),
                });
            }
        });
    }
    for output in &op.outputs {
        w.message(3, |w| write_named(output, varying, w));
    }
    for block in &op.blocks {
        w.message(4, |w| write_block(block, varying, w));
    }
    write_attributes(5, &op.attributes, w);
}

fn read_argument(mut reader: Reader<'_>) -> Result<Vec<Binding>> {
    let mut bindings = Vec::new();
    while let Some(field) = reader.next()? {
        if field.number != 1 {
            return Err(reader.unknown(&field));
        }
        let mut reader = field.message("Binding")?;
        let mut binding = None;
        while let Some(field) = reader.next()? {
            binding = Some(match field.number {
                1 => Binding::Name(field.string()?),
                2 => Binding::Value(read_value(field.message("Value")?)?),
                _ => return Err(reader.unknown(&field)),
            });
        }
        bindings.push(binding.ok_or_else(|| reader.error("is empty"))?);
    }
    Ok(bindings)
}

fn read_named(mut reader: Reader<'_>) -> Result<Named> {
    let (mut name, mut ty) = (String::new(), None);
    while let Some(field) = reader.next()? {
        match field.number {
            1 => name = field.string()?,
            2 => ty = Some(read_type(field.message("ValueType")?)?),
            _ => return Err(reader.unknown(&field)),
        }
    }
    let ty = ty.ok_or_else(|| reader.error(format!("{name:?} has no type")))?;
    Ok(Named { name, ty })
}

fn write_named(named: &Named, varying: &Varying, w: &mut Writer) {
    w.string(1, &named.name);
    let varying = varying.get(&named.name).map_or(&[][..], Vec::as_slice);
    w.message(2, |w| write_varying_type(&named.ty, varying, w));
}
