//! Writing a part of a checkpoint.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::Checkpoint;
use crate::{Error, Result};

/// What headers are filled up to, so that the bytes behind them are aligned.
const ALIGNMENT: usize = 8;

impl Checkpoint {
    /// Writes a file with some of the tensors, as they are stored: those that a format spreads over
    /// several names with all of their parts.
    ///
    /// # Errors
    /// If there is no tensor of such a name, or writing fails.
    pub fn write_some<W: Write>(&self, names: &[&str], mut out: W) -> Result<W> {
        let mut parts: Vec<String> = Vec::new();
        for name in names {
            self.info(name)?;
            let stored =
                self.source(name)?.parts(name).filter(|part| self.stored.contains_key(part));
            parts.extend(stored);
        }
        let (mut header, mut at) = (Map::new(), 0);
        for part in &parts {
            let entry = self.entry(part)?;
            let end = at + entry.len;
            let (dtype, shape) = (&entry.dtype, &entry.shape);
            let said = json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, end] });
            if header.insert(part.clone(), said).is_some() {
                let problem = "occurs twice".to_owned();
                return Err(Error::Tensor { name: part.clone(), problem });
            }
            at = end;
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for part in &parts {
            out.write_all(&self.bytes(part)?)?;
        }
        out.flush()?;
        Ok(out)
    }
}
