//! The wire format of Protocol Buffers, as far as Core ML's messages need it.
//!
//! A message is a list of fields, each a number and a value of one of three shapes. Reading shares the
//! bytes and allocates nothing; what a field means is up to the caller, who also decides whether a
//! field it does not know is [kept](Field::raw) or [refused](Reader::unknown).

use crate::{Error, Result};

/// Messages inside messages; Core ML's own nest some ten deep, plus two for each nested block.
const MAX_DEPTH: usize = 100;

/// Reads the fields of one message.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    /// The message's name, for errors.
    message: &'static str,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    pub number: u32,
    pub value: Wire<'a>,
    /// The field as it lies in the file, tag included.
    pub raw: &'a [u8],
    depth: usize,
    message: &'static str,
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes.
    Fixed(&'a [u8]),
}

impl<'a> Reader<'a> {
    /// The outermost message of a file.
    pub fn new(bytes: &'a [u8], message: &'static str) -> Self {
        Reader { bytes, at: 0, depth: 0, message }
    }

    /// The next field, if there is one.
    pub fn next(&mut self) -> Result<Option<Field<'a>>> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let start = self.at;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|n| (1..1 << 29).contains(n));
        let number = number.ok_or_else(|| self.error("has a field number out of range"))?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed(self.take(8)?),
            2 => {
                let len = self.varint()?;
                let len = usize::try_from(len).map_err(|_| self.error("is cut short"))?;
                Wire::Bytes(self.take(len)?)
            }
            5 => Wire::Fixed(self.take(4)?),
            kind => return Err(self.error(format!("has a field of wire type {kind}"))),
        };
        let raw = &self.bytes[start..self.at];
        Ok(Some(Field { number, value, raw, depth: self.depth, message: self.message }))
    }

    /// The error for a field that this message is not known to have.
    pub fn unknown(&self, field: &Field<'_>) -> Error {
        let (number, message) = (field.number, self.message);
        Error::Unsupported {
            what: format!("field {number} of a {message}"),
            instead: "it is of a later format; use a package of specification 6 to 9".into(),
        }
    }

    /// What is wrong with this message.
    pub fn error(&self, problem: impl std::fmt::Display) -> Error {
        Error::malformed(format!("{} {problem}", self.message))
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..n).ok_or_else(|| self.error("is cut short"))?;
        self.at += n;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 127);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(self.error("has a number of more than 64 bits"))
    }
}

impl<'a> Field<'a> {
    fn error(&self, wanted: &str) -> Error {
        Error::malformed(format!("field {} of a {} is no {wanted}", self.number, self.message))
    }

    /// The bytes of a message, a string or packed numbers.
    pub fn bytes(&self) -> Result<&'a [u8]> {
        match self.value {
            Wire::Bytes(bytes) => Ok(bytes),
            _ => Err(self.error("run of bytes")),
        }
    }

    /// The message in it, which is called `message`.
    pub fn message(&self, message: &'static str) -> Result<Reader<'a>> {
        if self.depth == MAX_DEPTH {
            return Err(Error::malformed(format!("messages nest deeper than {MAX_DEPTH}")));
        }
        Ok(Reader { bytes: self.bytes()?, at: 0, depth: self.depth + 1, message })
    }

    /// The text in it.
    pub fn string(&self) -> Result<String> {
        match std::str::from_utf8(self.bytes()?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.error("text in UTF-8")),
        }
    }

    /// The number in it.
    pub fn varint(&self) -> Result<u64> {
        match self.value {
            Wire::Varint(value) => Ok(value),
            _ => Err(self.error("number")),
        }
    }

    /// The 32-bit number in it. Negative ones are written as 64 bits.
    pub fn int32(&self) -> Result<i32> {
        let value = self.varint()? as i64;
        i32::try_from(value).map_err(|_| self.error("number of 32 bits"))
    }

    /// Adds the numbers in it, packed or a single one, to `values`.
    pub fn varints(&self, values: &mut Vec<u64>) -> Result<()> {
        match self.value {
            Wire::Varint(value) => values.push(value),
            Wire::Bytes(bytes) => {
                let (depth, message) = (self.depth, self.message);
                let mut reader = Reader { bytes, at: 0, depth, message };
                while reader.at < bytes.len() {
                    values.push(reader.varint()?);
                }
            }
            _ => return Err(self.error("list of numbers")),
        }
        Ok(())
    }

    /// Adds the words of `N` bytes in it, packed or a single one, to `values`.
    pub fn words<const N: usize>(&self, values: &mut Vec<[u8; N]>) -> Result<()> {
        match self.value {
            Wire::Bytes(bytes) if bytes.len().is_multiple_of(N) => {
                values.extend(bytes.chunks_exact(N).map(|c| <[u8; N]>::try_from(c).expect("N")));
            }
            Wire::Fixed(word) if word.len() == N => {
                values.push(word.try_into().expect("N bytes"));
            }
            _ => return Err(self.error("list of floating-point numbers")),
        }
        Ok(())
    }
}

/// Writes the fields of one message, in the order of the calls. Strings and numbers that are empty or
/// 0 are left out where the format says that this is their default.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// The message's bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn tag(&mut self, number: u32, kind: u64) {
        self.varint(u64::from(number) << 3 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 128 {
            self.bytes.push(value as u8 | 128);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A number, which is written even if it is 0.
    pub fn number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    /// A number, unless it is 0.
    pub fn number_if(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.number(field, value);
        }
    }

    /// A run of bytes, which is written even if it is empty.
    pub fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A text, unless it is empty.
    pub fn string(&mut self, field: u32, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    /// A message.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Writer)) {
        let mut inner = Writer::default();
        write(&mut inner);
        self.bytes(field, &inner.bytes);
    }

    /// An entry of a map from texts to messages.
    pub fn entry(&mut self, field: u32, key: &str, write: impl FnOnce(&mut Writer)) {
        self.message(field, |entry| {
            entry.string(1, key);
            entry.message(2, write);
        });
    }

    /// Numbers, packed.
    pub fn varints(&mut self, field: u32, values: impl Iterator<Item = u64>) {
        let mut inner = Writer::default();
        values.for_each(|value| inner.varint(value));
        if !inner.bytes.is_empty() {
            self.bytes(field, &inner.bytes);
        }
    }

    /// Fields that were read and not understood, as they were.
    pub fn raw(&mut self, fields: &[u8]) {
        self.bytes.extend_from_slice(fields);
    }
}

/// Reads an entry of a map from texts to messages called `message`.
pub(crate) fn entry<'a>(
    field: &Field<'a>,
    message: &'static str,
) -> Result<(String, Option<Reader<'a>>)> {
    let (mut key, mut value) = (String::new(), None);
    let mut reader = field.message("map entry")?;
    while let Some(field) = reader.next()? {
        match field.number {
            1 => key = field.string()?,
            2 => value = Some(field.message(message)?),
            _ => return Err(reader.unknown(&field)),
        }
    }
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Result<Vec<u32>> {
        let mut reader = Reader::new(bytes, "Test");
        let mut numbers = Vec::new();
        while let Some(field) = reader.next()? {
            numbers.push(field.number);
        }
        Ok(numbers)
    }

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::default();
        writer.number(502, u64::MAX);
        writer.string(1, "text");
        writer.string(2, "");
        writer.entry(3, "key", |w| w.varints(1, [0, 1 << 40, (-1i32) as u64].into_iter()));
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes, "Test");
        let field = reader.next().unwrap().unwrap();
        assert_eq!((field.number, field.varint().unwrap()), (502, u64::MAX));
        assert_eq!(field.int32().unwrap(), -1);
        assert_eq!(reader.next().unwrap().unwrap().string().unwrap(), "text");
        let (key, value) = entry(&reader.next().unwrap().unwrap(), "Inner").unwrap();
        assert_eq!(key, "key");
        let mut numbers = Vec::new();
        value.unwrap().next().unwrap().unwrap().varints(&mut numbers).unwrap();
        assert_eq!(numbers, [0, 1 << 40, u64::MAX]);
        assert!(reader.next().unwrap().is_none());
    }

    #[test]
    fn messages_that_break_the_format_are_refused() {
        let cases: [(&str, &[u8]); 7] = [
            ("field 0", &[0, 0]),
            ("a group", &[0x0b]),
            ("a length beyond the end", &[0x0a, 5, 1]),
            ("a length of 2^63", &[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 127]),
            ("a number without end", &[0x08, 255, 255]),
            ("a number of 70 bits", &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
            ("a word cut short", &[0x0d, 1, 2]),
        ];
        for (what, bytes) in cases {
            assert!(fields(bytes).is_err(), "{what}");
        }
        assert_eq!(fields(&[0x08, 1, 0x15, 0, 0, 0, 0]).unwrap(), [1, 2]);
    }
}
