//! What each of a model's packages is for.

use std::ops::Range;

use crate::lower::{DECODE, EMBEDDING_FACTOR, HEAD, NEW, prefill_name, prefill_sizes};
use crate::package::Package;
use crate::{Error, Result};

/// The packages of a model by what they compute.
#[derive(Debug)]
pub(super) struct Roles {
    /// Those of layers, in their order, with the layers of each.
    pub chunks: Vec<(usize, Range<usize>)>,
    /// Those of the head, in the order of the vocabulary.
    pub heads: Vec<usize>,
    /// New tokens and history of each prefill function.
    pub functions: Vec<(usize, usize)>,
    /// Whether all chunks have a decode function.
    pub decode: bool,
    /// Rows that a head takes.
    pub head_rows: usize,
    /// What embeddings are multiplied with.
    pub factor: f32,
}

impl Roles {
    /// # Errors
    /// If the functions of different packages do not go together.
    pub fn of<'a>(packages: impl Iterator<Item = &'a Package>) -> Result<Roles> {
        let (mut chunks, mut heads, mut head_rows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut functions, mut layers) = (None, 0usize);
        let (mut factor, mut decode) = (1.0, true);
        for (i, package) in packages.enumerate() {
            let program = &package.model.program;
            let own: Vec<(usize, usize)> =
                program.functions.keys().filter_map(|name| prefill_sizes(name)).collect();
            if let Some(&(tokens, history)) = own.first() {
                let function = &program.functions[&prefill_name(tokens, history)];
                let keys = function.outputs().find(|(name, _)| *name == NEW[0]);
                let n = keys.and_then(|(_, ty)| ty.shape.first().copied()).unwrap_or(0);
                let end = layers.saturating_add(n);
                chunks.push((i, layers..end));
                layers = end;
                decode &= program.functions.contains_key(DECODE);
                if *functions.get_or_insert_with(|| own.clone()) != own {
                    return Err(Error::malformed("its chunks have not the same functions"));
                }
            }
            if let Some(head) = program.functions.get(HEAD) {
                let rows = head.tensor_inputs().next().and_then(|(_, ty)| ty.shape.last().copied());
                head_rows.push(rows.unwrap_or(0));
                heads.push(i);
            }
            if let Some(text) = package.model.metadata.user.get(EMBEDDING_FACTOR) {
                factor = text
                    .parse()
                    .map_err(|_| Error::malformed(format!("{EMBEDDING_FACTOR} is no number")))?;
            }
        }
        let head_rows = match head_rows.first() {
            Some(&rows) if rows > 0 && head_rows.iter().all(|&other| other == rows) => rows,
            _ => return Err(Error::malformed(format!("it has no function {HEAD:?}"))),
        };
        let functions = functions.unwrap_or_default();
        Ok(Roles { chunks, heads, functions, decode, head_rows, factor })
    }
}
