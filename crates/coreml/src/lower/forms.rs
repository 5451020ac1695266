//! How weights are written.

use std::collections::BTreeMap;
use std::fmt;

use super::integers::Integer;
use super::palette::Palette;

/// How the matrix of a product is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// In half precision.
    #[default]
    Half,
    /// As indices into tables.
    Palette(Palette),
    /// As integers with scales.
    Integer(Integer),
}

impl Form {
    /// Bits of a weight, tables and scales left out.
    pub fn bits(&self) -> u8 {
        match self {
            Form::Half => 16,
            Form::Palette(palette) => palette.bits,
            Form::Integer(integer) => integer.bits,
        }
    }

    /// The form of a matrix of `n` weights: a table would be longer than few of them.
    pub(super) fn of_size(self, n: usize) -> Form {
        match self {
            Form::Palette(palette) if n <= 2 << palette.bits => Form::Half,
            form => form,
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, bits, each) = match self {
            Form::Half => return f.write_str("fp16"),
            Form::Palette(Palette { bits, group }) => ("lut", bits, group),
            Form::Integer(Integer { bits, block }) => ("int", bits, block),
        };
        write!(f, "{kind}{bits}")?;
        if *each > 0 { write!(f, "-g{each}") } else { Ok(()) }
    }
}

/// The forms of a model's matrices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Of all that have none of their own.
    pub each: Form,
    /// By the names of weights.
    pub by_name: BTreeMap<String, Form>,
}

impl Forms {
    /// The form of a weight.
    pub fn of(&self, name: &str) -> Form {
        self.by_name.get(name).copied().unwrap_or(self.each)
    }
}

impl From<Form> for Forms {
    fn from(each: Form) -> Self {
        Forms { each, by_name: BTreeMap::new() }
    }
}
