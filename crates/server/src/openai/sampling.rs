//! What requests of this interface say about sampling.

use std::collections::BTreeMap;

use baton_engine::Sampling;

use crate::{ApiError, Result};

/// Most likely other tokens that can be asked for, as OpenAI has it.
const MAX_TOP_LOGPROBS: usize = 20;

/// The bias of tokens, by ids that are written as strings.
pub fn logit_bias(given: Option<BTreeMap<String, f32>>) -> Result<BTreeMap<u32, f32>> {
    let entry = |(id, bias): (String, f32)| match id.parse() {
        Ok(id) => Ok((id, bias)),
        Err(_) => {
            let message = format!("logit_bias has {id:?}, which is no token id");
            Err(ApiError::invalid("logit_bias", message))
        }
    };
    given.unwrap_or_default().into_iter().map(entry).collect()
}

/// How many likely tokens to tell with each one.
///
/// # Errors
/// If there are too many.
pub fn top_logprobs(param: &str, wanted: usize) -> Result<usize> {
    match wanted {
        0..=MAX_TOP_LOGPROBS => Ok(wanted),
        _ => {
            let message = format!("{param} is {wanted}; it must be at most {MAX_TOP_LOGPROBS}");
            Err(ApiError::invalid(param, message))
        }
    }
}

/// Sampling of several answers to one request: with a seed given, each has its own.
pub fn of_choice(sampling: &Sampling, index: usize) -> Sampling {
    let seed = sampling.seed.map(|seed| seed.wrapping_add(index as u64));
    Sampling { seed, ..sampling.clone() }
}

/// The number of answers that are wanted.
///
/// # Errors
/// If it is none, or too many.
pub fn choices(n: Option<usize>) -> Result<usize> {
    const MOST: usize = 16;
    match n.unwrap_or(1) {
        n @ 1..=MOST => Ok(n),
        n => Err(ApiError::invalid("n", format!("n is {n}; it must be from 1 to {MOST}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_for_a_token() {
        let bias = |id: &str| logit_bias(Some([(id.to_owned(), -100.0)].into()));
        assert_eq!(bias("17").unwrap(), [(17, -100.0)].into());
        assert_eq!(bias("the").unwrap_err().param.as_deref(), Some("logit_bias"));
        assert!(logit_bias(None).unwrap().is_empty());
    }

    #[test]
    fn each_answer_has_its_own_seed() {
        let seeded = Sampling { seed: Some(u64::MAX), ..Sampling::default() };
        assert_eq!(of_choice(&seeded, 1).seed, Some(0));
        assert_eq!(of_choice(&Sampling::default(), 1).seed, None);
    }

    #[test]
    fn numbers_are_bounded() {
        assert_eq!(choices(None).unwrap(), 1);
        for bad in [0, 17, usize::MAX] {
            assert_eq!(choices(Some(bad)).unwrap_err().param.as_deref(), Some("n"));
        }
        assert_eq!(top_logprobs("top_logprobs", 20).unwrap(), 20);
        assert!(top_logprobs("top_logprobs", 21).is_err());
    }
}
