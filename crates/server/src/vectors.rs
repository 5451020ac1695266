//! Vectors of texts: the one path that every interface takes to an embedding model.

use std::sync::Arc;

use baton_engine::{CancelToken, EmbedOptions};

use crate::chat::blocking;
use crate::models::Lease;
use crate::{ApiError, Kind, Result};

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

/// Ends the work when nobody waits for it any more.
struct Waiting(CancelToken);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Makes vectors. Requests to one model work one after the other.
///
/// # Errors
/// If the model makes none, a text is empty or too long, or too many requests wait.
pub async fn vectors(lease: Lease, request: VectorRequest) -> Result<Vectors> {
    let (places, turn) = {
        let vectorizer = lease.vectorizer()?;
        (Arc::clone(&vectorizer.places), Arc::clone(&vectorizer.turn))
    };
    let _place = places.try_acquire_owned().map_err(|_| {
        let problem = "too many requests are waiting already; try again later";
        ApiError::new(Kind::Busy, problem)
    })?;
    let turn = turn.acquire_owned().await.map_err(ApiError::internal)?;
    let cancel = CancelToken::new();
    let _waiting = Waiting(cancel.clone());
    blocking(move || {
        let _turn = turn;
        let VectorRequest { texts, dimensions, truncate } = request;
        let options = EmbedOptions { dimensions, truncate, cancel };
        let made = lease.vectorizer()?.embedder.embed(&texts, &options)?;
        let tokens = made.iter().map(|one| one.tokens).sum();
        Ok(Vectors { vectors: made.into_iter().map(|one| one.vector).collect(), tokens })
    })
    .await
}
