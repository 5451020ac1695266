//! What packed weights depend on, as a digest: the weights, and the form that they are packed in.

use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::Matrix;
use super::packed::Layout;
use crate::cache::Key;

/// Raised whenever weights are packed in another way.
const FORM: &str = "baton packed weights 1";
/// Matrices of which bytes are looked at, at most, and how many bytes of each.
const SAMPLES: usize = 256;
const SAMPLE: usize = 64;

/// The key of these matrices' panels in that layout; none if a matrix is of no file, or the system
/// does not tell when the file was written.
///
/// Reading all weights would take as long as packing them. A file is taken to be the same if it has
/// the same length and time of change, and the same bytes in many places: a model trained further
/// differs everywhere, also where all files carry the same time.
pub(super) fn key(layout: Layout, matrices: &[&mut Matrix]) -> Option<Key> {
    let mut digest = Sha256::new_with_prefix(FORM);
    digest.update(format!(" {layout:?} {}\n", matrices.len()));
    let step = matrices.len().div_ceil(SAMPLES).max(1);
    for (i, matrix) in matrices.iter().enumerate() {
        let tensor = matrix.tensor();
        let origin = tensor.origin()?;
        let written = origin.modified?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        let scales = tensor.affine().map(|affine| affine.dtype);
        digest.update(format!("{matrix} {scales:?} {} {written}\n", origin.len));
        if i % step == 0 {
            let data = tensor.data();
            let at = data.len() / 2;
            digest.update(&data[at..data.len().min(at + SAMPLE)]);
            // A page of the file that was looked at need not stay in memory.
            tensor.release();
        }
    }
    Some(digest.finalize().into())
}
