//! What the inputs and outputs of functions are called: see [`MilLowering`](super::MilLowering).

/// Keys and values of earlier tokens, inputs of prefill functions.
pub(crate) const PAST: [&str; 2] = ["past_keys", "past_values"];
/// Keys and values of new tokens, their outputs.
pub(crate) const NEW: [&str; 2] = ["keys", "values"];
/// The states of the decode function, of keys and of values.
pub(crate) const CACHES: [&str; 2] = ["key_cache", "value_cache"];
/// The input that says which place of the states is the new token's.
pub(crate) const POSITION: &str = "position";
/// The output of all functions of layers, and the input of the head.
pub(crate) const HIDDEN_STATE: &str = "hidden";
