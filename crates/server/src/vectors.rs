//! Vectors of texts: the one path that every interface takes to an embedding model.

use crate::models::Lease;
use crate::{ApiError, Result};

/// Texts to make vectors of.
#[derive(Clone, Debug, Default)]
pub struct VectorRequest {
    /// The texts.
    pub texts: Vec<String>,
    /// Elements of a vector, if fewer are wanted than the model gives.
    pub dimensions: Option<usize>,
    /// Whether a text that is too long is cut at its end; else it is refused.
    pub truncate: bool,
}

/// Vectors of length 1, in the order of the texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors {
    /// One for each text.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens that were read.
    pub tokens: usize,
}

/// Makes vectors.
///
/// # Errors
/// If the model makes none, or a text is empty or too long.
pub async fn vectors(lease: Lease, _request: VectorRequest) -> Result<Vectors> {
    let problem = format!("{} is not an embedding model", lease.name);
    Err(ApiError::invalid("model", problem))
}
