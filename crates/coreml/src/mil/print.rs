//! The text form of a program, which [`parse`](super::parse) reads back.
//!
//! ```text
//! program {
//!   func main<CoreML8>(x: tensor<fp16, [1, 2]>) {
//!     two: tensor<fp16, []> = const() {name = "two", val = tensor<fp16, []>(x"0040")};
//!     y: tensor<fp16, [1, 2]> = mul(x = x, y = two) {name = "y"};
//!     return y;
//!   }
//! }
//! ```
//!
//! Elements are `f[...]` (fp32), `d[...]` (fp64), `i[...]` (16 and 32 bits), `l[...]` (64 bits), `b[...]`,
//! `s[...]`, or `x"..."` for the bytes of any other type. A place in a weight file is `@"file":offset`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::program::{Binding, Block, Function, Named, Op, Program};
use super::value::{Data, Elements, Value};

/// Spaces of one level.
const INDENT: usize = 2;

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("program")?;
        attributes(&self.attributes, f)?;
        f.write_str(" {\n")?;
        for (name, function) in &self.functions {
            self::function(name, function, f)?;
        }
        f.write_str("}\n")
    }
}

impl Display for Op {
    /// The operation on one line, without the blocks in it.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        list(f, &self.outputs)?;
        if !self.outputs.is_empty() {
            f.write_str(" = ")?;
        }
        write!(f, "{}(", self.kind)?;
        for (i, (name, bindings)) in self.inputs.iter().enumerate() {
            f.write_str(if i > 0 { ", " } else { "" })?;
            write!(f, "{name} = ")?;
            match &bindings[..] {
                [binding] => write!(f, "{binding}")?,
                _ => {
                    f.write_str("[")?;
                    list(f, bindings)?;
                    f.write_str("]")?;
                }
            }
        }
        f.write_str(")")?;
        attributes(&self.attributes, f)
    }
}

impl Display for Named {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)
    }
}

impl Display for Binding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Binding::Name(name) => f.write_str(name),
            Binding::Value(value) => write!(f, "{value}"),
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(text) = self.as_str().filter(|text| *self == Value::string(text)) {
            return quoted(text, f);
        }
        write!(f, "{}(", self.ty)?;
        match &self.data {
            Data::Tensor(elements) => write!(f, "{elements}")?,
            Data::Tuple(values) | Data::List(values) => list(f, values)?,
            Data::Dict(pairs) => {
                for (i, (key, value)) in pairs.iter().enumerate() {
                    write!(f, "{}{key} = {value}", if i > 0 { ", " } else { "" })?;
                }
            }
            Data::Blob(blob) => {
                f.write_str("@")?;
                quoted(&blob.file, f)?;
                write!(f, ":{}", blob.offset)?;
            }
        }
        f.write_str(")")
    }
}

impl Display for Elements {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let listed = |f: &mut Formatter<'_>, kind: &str, texts: Vec<String>| {
            write!(f, "{kind}[{}]", texts.join(", "))
        };
        match self {
            // The shortest decimals that read back as the same number; bits where there are none.
            Elements::Floats(values) => {
                let text = |v: &f32| match v.is_finite() {
                    true => format!("{v:?}"),
                    false => format!("{:#x}", v.to_bits()),
                };
                listed(f, "f", values.iter().map(text).collect())
            }
            Elements::Doubles(values) => {
                let text = |v: &f64| match v.is_finite() {
                    true => format!("{v:?}"),
                    false => format!("{:#x}", v.to_bits()),
                };
                listed(f, "d", values.iter().map(text).collect())
            }
            Elements::Ints(values) => listed(f, "i", values.iter().map(i32::to_string).collect()),
            Elements::Longs(values) => listed(f, "l", values.iter().map(i64::to_string).collect()),
            Elements::Bools(values) => listed(f, "b", values.iter().map(bool::to_string).collect()),
            Elements::Strings(texts) => {
                f.write_str("s[")?;
                for (i, text) in texts.iter().enumerate() {
                    f.write_str(if i > 0 { ", " } else { "" })?;
                    quoted(text, f)?;
                }
                f.write_str("]")
            }
            Elements::Bytes(bytes) => {
                f.write_str("x\"")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_str("\"")
            }
        }
    }
}

fn list(f: &mut Formatter<'_>, items: &[impl Display]) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
    }
    Ok(())
}

fn quoted(text: &str, f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            _ => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

fn attributes(attributes: &BTreeMap<String, Value>, f: &mut Formatter<'_>) -> fmt::Result {
    if attributes.is_empty() {
        return Ok(());
    }
    f.write_str(" {")?;
    for (i, (name, value)) in attributes.iter().enumerate() {
        write!(f, "{}{name} = {value}", if i > 0 { ", " } else { "" })?;
    }
    f.write_str("}")
}

fn function(name: &str, function: &Function, f: &mut Formatter<'_>) -> fmt::Result {
    write!(f, "{:INDENT$}func {name}<{}>(", "", function.opset)?;
    list(f, &function.inputs)?;
    f.write_str(")")?;
    attributes(&function.attributes, f)?;
    block(&function.body, INDENT, f)?;
    f.write_str("\n")
}

/// The part of a block from its brace on, with its own attributes before it.
fn block(block: &Block, indent: usize, f: &mut Formatter<'_>) -> fmt::Result {
    if !block.attributes.is_empty() {
        f.write_str(" block")?;
        attributes(&block.attributes, f)?;
    }
    f.write_str(" {\n")?;
    let inner = indent + INDENT;
    for op in &block.ops {
        write!(f, "{:inner$}{op}", "")?;
        for nested in &op.blocks {
            f.write_str(" (")?;
            list(f, &nested.inputs)?;
            f.write_str(")")?;
            self::block(nested, inner, f)?;
        }
        f.write_str(";\n")?;
    }
    write!(f, "{:inner$}return {};\n{:indent$}}}", "", block.outputs.join(", "), "")
}
