//! Which texts are computed together, and the sizes that an executor is compiled for.

use std::ops::Range;

use baton_graph::Limits;
use baton_models::ModelConfig;

use crate::{Error, LoadOptions, Result};

/// Units keep caches in pages of no more tokens than this; a text takes whole ones.
const PAGE: usize = 64;
/// Room for texts so short that their pages stay mostly empty, in models that cache nothing.
const SPARSE: usize = 8;
/// The model's own tokens and at least one of the text.
const LEAST_CONTEXT: usize = 4;

/// Sizes for an embedding model; `context` is what is chosen if the options say nothing.
///
/// A batch holds at least one text of any length that the context allows, as there are models that
/// read a text only as a whole.
pub(crate) fn limits(
    config: &ModelConfig,
    options: &LoadOptions,
    context: usize,
) -> Result<Limits> {
    let trained = config.embedding.as_ref().and_then(|head| head.max_tokens);
    let context = options.context.unwrap_or(context.min(trained.unwrap_or(context)));
    if context < LEAST_CONTEXT {
        let wanted = "at least 4, for the model's own tokens and one of the text";
        return Err(Error::Option { name: "context", value: context.to_string(), wanted });
    }
    let batch_tokens = options.batch_tokens.max(context);
    let pages = batch_tokens.div_ceil(PAGE).saturating_mul(PAGE);
    let room = if config.bidirectional { pages.saturating_mul(SPARSE) } else { pages };
    Ok(Limits { context, kv_tokens: options.kv_tokens.unwrap_or(room).max(pages), batch_tokens })
}

/// Cuts texts of these lengths, each within the context, into runs that fit the limits.
pub(super) fn batches(lengths: &[usize], limits: &Limits) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut tokens, mut room) = (0, 0, 0);
    for (at, &length) in lengths.iter().enumerate() {
        let pages = length.div_ceil(PAGE) * PAGE;
        if at > start && (tokens + length > limits.batch_tokens || room + pages > limits.kv_tokens)
        {
            batches.push(start..at);
            (start, tokens, room) = (at, 0, 0);
        }
        (tokens, room) = (tokens + length, room + pages);
    }
    if start < lengths.len() {
        batches.push(start..lengths.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_fit_the_limits_and_leave_nothing_out() {
        let limits = Limits { context: 100, kv_tokens: 256, batch_tokens: 128 };
        let cut = |lengths: &[usize]| batches(lengths, &limits);
        assert!(cut(&[]).is_empty());
        assert_eq!(cut(&[100]).len(), 1);
        assert_eq!(cut(&[60, 60, 9, 100, 100]), [0..2, 2..4, 4..5]);
        // Five texts of one token each want five pages.
        assert_eq!(cut(&[1; 5]), [0..4, 4..5]);
    }
}
