//! Results as people and programs read them.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value};

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table in Markdown, a row as soon as it is there
    Md,
    /// One list of objects, at the end
    Json,
    /// An object in a line, as soon as it is there
    Jsonl,
    /// A line of names, then lines of values
    Csv,
}

/// A result that can be printed in every format.
pub trait Row: Clone + Serialize {
    /// Columns of its table.
    const COLUMNS: &'static [Column];

    /// What stands in them.
    fn cells(&self) -> Vec<String>;

    /// Writes what comes below the table.
    ///
    /// # Errors
    /// If it cannot be written.
    fn below(out: &mut dyn Write, rows: &[Self]) -> io::Result<()>;
}

/// A column of a table: title, width, and whether its cells stand to the right.
pub type Column = (&'static str, usize, bool);

/// Prints results as they come.
pub struct Printer<'a, R> {
    format: Format,
    out: &'a mut dyn Write,
    rows: Vec<R>,
}

impl<'a, R: Row> Printer<'a, R> {
    /// A printer to `out`.
    pub fn new(format: Format, out: &'a mut dyn Write) -> Self {
        Printer { format, out, rows: Vec::new() }
    }

    /// Takes the next result, and prints it if the format can.
    ///
    /// # Errors
    /// If it cannot be printed.
    pub fn row(&mut self, record: &R) -> anyhow::Result<()> {
        let first = self.rows.is_empty();
        match self.format {
            Format::Md => {
                if first {
                    header(self.out, R::COLUMNS)?;
                }
                line(self.out, R::COLUMNS, &record.cells())?;
            }
            Format::Json => {}
            Format::Jsonl => writeln!(self.out, "{}", serde_json::to_string(record)?)?,
            Format::Csv => {
                let fields = fields(record)?;
                // Lists have no place in a line.
                let flat = || fields.iter().filter(|(_, value)| !value.is_array());
                if first {
                    let names: Vec<&str> = flat().map(|(name, _)| name.as_str()).collect();
                    writeln!(self.out, "{}", names.join(","))?;
                }
                let values: Vec<String> = flat().map(|(_, value)| quoted(value)).collect();
                writeln!(self.out, "{}", values.join(","))?;
            }
        }
        self.out.flush()?;
        self.rows.push(record.clone());
        Ok(())
    }

    /// Prints what comes after the last result.
    ///
    /// # Errors
    /// If it cannot be printed.
    pub fn finish(self) -> anyhow::Result<Vec<R>> {
        match self.format {
            Format::Json => writeln!(self.out, "{}", serde_json::to_string_pretty(&self.rows)?)?,
            Format::Md => R::below(self.out, &self.rows)?,
            Format::Jsonl | Format::Csv => {}
        }
        self.out.flush()?;
        Ok(self.rows)
    }
}

/// Writes the head of a table.
///
/// # Errors
/// If it cannot be written.
pub fn header(out: &mut dyn Write, columns: &[Column]) -> io::Result<()> {
    let titles: Vec<String> = columns.iter().map(|column| column.0.to_owned()).collect();
    line(out, columns, &titles)?;
    let rule = |&(_, width, right): &Column| {
        format!(" {}{} |", "-".repeat(width - 1), if right { ':' } else { '-' })
    };
    writeln!(out, "|{}", columns.iter().map(rule).collect::<String>())
}

/// Writes one line of a table.
///
/// # Errors
/// If it cannot be written.
pub fn line(out: &mut dyn Write, columns: &[Column], cells: &[String]) -> io::Result<()> {
    let cell = |(&(_, width, right), cell): (&Column, &String)| match right {
        true => format!(" {cell:>width$} |"),
        false => format!(" {cell:<width$} |"),
    };
    writeln!(out, "|{}", columns.iter().zip(cells).map(cell).collect::<String>())
}

/// A result's fields, in order.
fn fields<R: Row>(row: &R) -> serde_json::Result<Map<String, Value>> {
    match serde_json::to_value(row)? {
        Value::Object(fields) => Ok(fields),
        other => Err(serde::ser::Error::custom(format!("a result became {other}"))),
    }
}

/// A value of a CSV line: text in quotes, as `llama-bench` writes every value.
fn quoted(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests;
