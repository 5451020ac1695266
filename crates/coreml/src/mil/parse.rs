//! Reads the text form of a program that [`print`](super::print) writes.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::program::{Binding, Block, Function, Named, Op, Program};
use super::types::{DataType, TensorType, Type};
use super::value::{BlobRef, Data, Elements, Value};
use crate::{Error, Result};

/// Types in types, values in values and blocks in blocks.
const MAX_DEPTH: usize = 64;

impl FromStr for Program {
    type Err = Error;

    /// Reads a program's dump.
    ///
    /// # Errors
    /// [`Error::Parse`] with the line at fault.
    fn from_str(text: &str) -> Result<Program> {
        let mut parser = Parser { text, line: 1, depth: 0 };
        let program = parser.program()?;
        match parser.peek() {
            None => Ok(program),
            Some(c) => Err(parser.error(format!("{c:?} after the program"))),
        }
    }
}

struct Parser<'a> {
    /// What is still to be read.
    text: &'a str,
    line: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, problem: impl Into<String>) -> Error {
        Error::Parse { line: self.line, problem: problem.into() }
    }

    fn skip(&mut self, bytes: usize) {
        self.line += self.text[..bytes].matches('\n').count();
        self.text = &self.text[bytes..];
    }

    fn peek(&mut self) -> Option<char> {
        let rest = self.text.trim_start();
        self.skip(self.text.len() - rest.len());
        rest.chars().next()
    }

    /// Takes `token`, if it is next.
    fn take(&mut self, token: &str) -> bool {
        self.peek();
        let found = self.text.starts_with(token);
        if found {
            self.skip(token.len());
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        match self.take(token) {
            true => Ok(()),
            false => {
                let found: String = self.text.chars().take(20).collect();
                Err(self.error(format!("{token:?} expected at {found:?}")))
            }
        }
    }

    /// The characters up to the first that is no part of a word or number.
    fn word(&mut self) -> Result<&'a str> {
        self.peek();
        let inside = |c: char| c.is_alphanumeric() || "_@.+-".contains(c);
        let end = self.text.find(|c| !inside(c)).unwrap_or(self.text.len());
        if end == 0 {
            return Err(self.error("a name or number expected"));
        }
        let word = &self.text[..end];
        self.skip(end);
        Ok(word)
    }

    fn number<T: FromStr>(&mut self) -> Result<T> {
        let word = self.word()?;
        word.parse().map_err(|_| self.error(format!("{word:?} is no such number")))
    }

    fn string(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut text = String::new();
        let mut chars = self.text.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.skip(at + 1);
                    return Ok(text);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, c)) => text.push(c),
                    None => break,
                },
                _ => text.push(c),
            }
        }
        Err(self.error("a text without end"))
    }

    /// Items with commas between them up to `close`.
    fn list<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.take(close) {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(format!("nested deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn program(&mut self) -> Result<Program> {
        self.expect("program")?;
        let mut program = Program::default();
        self.expect("{")?;
        // Attributes have braces of their own before those of the program.
        let start = (self.text, self.line);
        if !self.take("func ") && self.peek() != Some('}') {
            (self.text, self.line) = start;
            program.attributes = self.attribute_list()?;
            self.expect("{")?;
        } else {
            (self.text, self.line) = start;
        }
        while !self.take("}") {
            self.expect("func ")?;
            let name = self.word()?.to_owned();
            let function = self.function()?;
            if program.functions.insert(name.clone(), function).is_some() {
                return Err(self.error(format!("a second function {name:?}")));
            }
        }
        Ok(program)
    }

    fn attribute_list(&mut self) -> Result<BTreeMap<String, Value>> {
        let pair = |p: &mut Self| {
            let name = p.word()?.to_owned();
            p.expect("=")?;
            Ok((name, p.value()?))
        };
        Ok(self.list("}", pair)?.into_iter().collect())
    }

    fn function(&mut self) -> Result<Function> {
        self.expect("<")?;
        let opset = self.word()?.to_owned();
        self.expect(">")?;
        self.expect("(")?;
        let inputs = self.list(")", Self::named)?;
        let mut attributes = BTreeMap::new();
        let start = (self.text, self.line);
        if self.take("{") {
            // `name = value` begins attributes; `name: type`, `name(` and `return` begin the body.
            let is_attribute = self.word().is_ok() && self.take("=");
            (self.text, self.line) = start;
            if is_attribute {
                self.expect("{")?;
                attributes = self.attribute_list()?;
            }
        }
        let own = self.block_attributes()?;
        self.expect("{")?;
        Ok(Function { inputs, opset, body: self.block(own)?, attributes })
    }

    fn block_attributes(&mut self) -> Result<BTreeMap<String, Value>> {
        if self.take("block") {
            self.expect("{")?;
            return self.attribute_list();
        }
        Ok(BTreeMap::new())
    }

    fn named(&mut self) -> Result<Named> {
        let name = self.word()?.to_owned();
        self.expect(":")?;
        Ok(Named { name, ty: self.ty()? })
    }

    /// The inside of a block, from behind its brace.
    fn block(&mut self, attributes: BTreeMap<String, Value>) -> Result<Block> {
        let mut block = Block { attributes, ..Block::default() };
        while !self.take("return") {
            let op = self.nested(Self::op)?;
            block.ops.push(op);
        }
        block.outputs = self.list(";", |p| Ok(p.word()?.to_owned()))?;
        self.expect("}")?;
        Ok(block)
    }

    fn op(&mut self) -> Result<Op> {
        let mut op = Op::default();
        let mut word = self.word()?.to_owned();
        while self.take(":") {
            op.outputs.push(Named { name: word, ty: self.ty()? });
            if !self.take(",") {
                self.expect("=")?;
            }
            word = self.word()?.to_owned();
        }
        op.kind = word;
        self.expect("(")?;
        let inputs = self.list(")", |p| {
            let name = p.word()?.to_owned();
            p.expect("=")?;
            let bindings =
                if p.take("[") { p.list("]", Self::binding)? } else { vec![p.binding()?] };
            Ok((name, bindings))
        })?;
        op.inputs = inputs.into_iter().collect();
        if self.take("{") {
            op.attributes = self.attribute_list()?;
        }
        while self.take("(") {
            let inputs = self.list(")", Self::named)?;
            let attributes = self.block_attributes()?;
            self.expect("{")?;
            op.blocks.push(Block { inputs, ..self.block(attributes)? });
        }
        self.expect(";")?;
        Ok(op)
    }

    fn binding(&mut self) -> Result<Binding> {
        if self.peek() == Some('"') {
            return Ok(Binding::Value(self.value()?));
        }
        let start = (self.text, self.line);
        let word = self.word()?;
        if self.peek() == Some('<') {
            (self.text, self.line) = start;
            return Ok(Binding::Value(self.value()?));
        }
        Ok(Binding::Name(word.to_owned()))
    }

    fn ty(&mut self) -> Result<Type> {
        self.nested(|p| {
            let kind = p.word()?;
            p.expect("<")?;
            let ty = match kind {
                "tensor" => {
                    let name = p.word()?;
                    let dtype = DataType::from_name(name)
                        .ok_or_else(|| p.error(format!("no element type {name:?}")))?;
                    p.expect(",")?;
                    p.expect("[")?;
                    Type::Tensor(TensorType { dtype, shape: p.list("]", Self::number)? })
                }
                "list" => {
                    let of = Box::new(p.ty()?);
                    Type::List(of, p.take(",").then(|| p.number()).transpose()?)
                }
                "tuple" => return Ok(Type::Tuple(p.list(">", Self::ty)?)),
                "dict" => {
                    let key = Box::new(p.ty()?);
                    p.expect(",")?;
                    Type::Dict(key, Box::new(p.ty()?))
                }
                "state" => match p.ty()? {
                    Type::Tensor(ty) => Type::State(ty),
                    _ => return Err(p.error("a state of no tensor")),
                },
                _ => return Err(p.error(format!("no type {kind:?}"))),
            };
            p.expect(">")?;
            Ok(ty)
        })
    }

    fn value(&mut self) -> Result<Value> {
        if self.peek() == Some('"') {
            return Ok(Value::string(&self.string()?));
        }
        self.nested(|p| {
            let ty = p.ty()?;
            p.expect("(")?;
            let data = match &ty {
                _ if p.take("@") => {
                    let file = p.string()?;
                    p.expect(":")?;
                    Data::Blob(BlobRef { file, offset: p.number()? })
                }
                Type::Tensor(tensor) => {
                    let elements = p.elements()?;
                    if !elements.fits(tensor) {
                        return Err(p.error(format!("other elements than {ty} has")));
                    }
                    Data::Tensor(elements)
                }
                Type::Tuple(_) => {
                    return Ok(Value { data: Data::Tuple(p.list(")", Self::value)?), ty });
                }
                Type::List(..) => {
                    return Ok(Value { data: Data::List(p.list(")", Self::value)?), ty });
                }
                Type::Dict(..) => {
                    let pairs = p.list(")", |p| {
                        let key = p.value()?;
                        p.expect("=")?;
                        Ok((key, p.value()?))
                    })?;
                    return Ok(Value { data: Data::Dict(pairs), ty });
                }
                Type::State(_) => return Err(p.error("a constant state")),
            };
            p.expect(")")?;
            Ok(Value { ty, data })
        })
    }

    fn elements(&mut self) -> Result<Elements> {
        let kind = self.peek().unwrap_or(' ');
        if kind == 'x' {
            self.expect("x")?;
            return Ok(Elements::Bytes(self.hex()?));
        }
        self.expect(&kind.to_string())?;
        self.expect("[")?;
        Ok(match kind {
            'f' => {
                let bits = |word: &str| u32::from_str_radix(word, 16).ok().map(f32::from_bits);
                Elements::Floats(self.list("]", |p| p.float(bits))?)
            }
            'd' => {
                let bits = |word: &str| u64::from_str_radix(word, 16).ok().map(f64::from_bits);
                Elements::Doubles(self.list("]", |p| p.float(bits))?)
            }
            'i' => Elements::Ints(self.list("]", Self::number)?),
            'l' => Elements::Longs(self.list("]", Self::number)?),
            'b' => Elements::Bools(self.list("]", Self::number)?),
            's' => Elements::Strings(self.list("]", Self::string)?),
            _ => return Err(self.error(format!("no elements of kind {kind:?}"))),
        })
    }

    fn float<T: FromStr>(&mut self, bits: impl Fn(&str) -> Option<T>) -> Result<T> {
        let word = self.word()?;
        let number = match word.strip_prefix("0x") {
            Some(word) => bits(word),
            None => word.parse().ok(),
        };
        number.ok_or_else(|| self.error(format!("{word:?} is no number")))
    }

    fn hex(&mut self) -> Result<Vec<u8>> {
        let text = self.string()?;
        let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.ok_or_else(|| self.error("no hexadecimal digits"))
    }
}
