//! Baton's own layout.

use super::names::PACKAGE;
use super::{Content, Piece};
use crate::lower::Part;

/// A package for each part, by names that keep their order.
pub(super) fn pieces(parts: Vec<Part>) -> Vec<Piece> {
    let n = parts.len();
    let chunks = parts.iter().filter(|part| part.has_layers()).count();
    let name = |i: usize, part: &Part| {
        let (kind, at, of) = match part.has_layers() {
            _ if n == 1 => return format!("model.{PACKAGE}"),
            true => ("chunk", i + 1, chunks),
            false => ("head", i + 1 - chunks, n - chunks),
        };
        match of {
            1 => format!("model_{kind}.{PACKAGE}"),
            _ => format!("model_{kind}_{at:02}_of_{of:02}.{PACKAGE}"),
        }
    };
    let piece =
        |(i, part): (usize, Part)| Piece { file: name(i, &part), content: Content::Part(part) };
    parts.into_iter().enumerate().map(piece).collect()
}
