//! What running packages takes of memory beside their weights and the cache, known before anything is allocated.

use std::fmt::Display;
use std::path::Path;

use baton_graph::{Graph, Limits};

use crate::foreign::Foreign;
use crate::lower::{Anatomy, MilLowering};
use crate::{Error, Folder, Result};

/// Room where the system does not tell how much memory it can give.
const UNKNOWN: u64 = 8 << 30;
/// The function for single tokens, which has states, in packages of our own.
const DECODE: &str = "decode";

/// Bytes that a system can give.
pub(crate) fn available() -> u64 {
    baton_weights::available_memory().unwrap_or(UNKNOWN)
}

/// That so many bytes are in the room that there is.
///
/// # Errors
/// If not, with what to do.
pub(crate) fn check(what: impl Display, needed: u64, room: u64) -> Result<()> {
    if needed <= room {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(Error::Unsupported {
        what: format!(
            "{what}, which takes up to {} MiB while it runs where {} MiB are available,",
            mib(needed),
            mib(room)
        ),
        instead: "run it on a machine with more memory, or compile the model for a shorter context"
            .into(),
    })
}

/// Room for `n` elements, or that there is none.
pub(crate) fn buffer<T>(n: usize) -> std::result::Result<Vec<T>, String> {
    let mut buffer = Vec::new();
    let reserved = buffer.try_reserve_exact(n);
    reserved.map(|()| buffer).map_err(|_| format!("there is no memory for {n} elements"))
}

/// `n` times the same element, or that there is no room for them.
pub(crate) fn repeated<T: Copy>(value: T, n: usize) -> std::result::Result<Vec<T>, String> {
    let mut buffer = buffer(n)?;
    buffer.resize(n, value);
    Ok(buffer)
}

/// Bytes of a number in the caches and states of functions: half precision on a machine with Core ML, single in
/// the interpreter.
pub(crate) fn each(device: bool) -> u64 {
    if device { 2 } else { 4 }
}

/// How many sequences have whole contexts in the cache.
pub(crate) fn sequences(limits: &Limits) -> u64 {
    (limits.kv_tokens / limits.context.max(1)).max(1) as u64
}

/// Bytes of a tensor of this shape whose numbers have `each` bytes.
pub(crate) fn bytes(each: u64, shape: &[usize]) -> u64 {
    let all = shape.iter().fold(each, |n, &dim| n.saturating_mul(dim as u64));
    if shape.contains(&0) { 0 } else { all }
}

/// Bytes of what packages that are lowered in memory for these limits keep and are given of the cache: the states of
/// as many sequences as have whole contexts in it, if single tokens go through them, and the longest history of
/// a prefill function. On a `device` they are in half precision, in the interpreter in single.
pub fn states_and_history(graph: &Graph, limits: &Limits, device: bool, has_states: bool) -> u64 {
    of_context(graph, limits, limits.context, device, has_states)
}

/// The same of packages that were compiled for a context.
fn of_context(
    graph: &Graph,
    limits: &Limits,
    context: usize,
    device: bool,
    has_states: bool,
) -> u64 {
    let Some([layers, heads, width]) = Anatomy::of(graph).ok().and_then(|found| found.cache) else {
        return 0;
    };
    // Keys, and as many values.
    let each = 2 * each(device);
    let history = [layers, heads, context, width];
    let state =
        MilLowering { pad_states: true, ..MilLowering::default() }.padded_state(history, [true; 3]);
    let states = if has_states { bytes(each, &state).saturating_mul(sequences(limits)) } else { 0 };
    states.saturating_add(bytes(each, &history))
}

/// Bytes of what the packages of a folder keep and are given of the cache, whoever they are laid out for. Their context
/// is what they were compiled for, however little of it is used.
///
/// # Errors
/// As [`Foreign::find`] and [`Folder::open`].
pub fn held_by_packages(
    folder: &Path,
    graph: &Graph,
    limits: &Limits,
    device: bool,
) -> Result<u64> {
    if let Some(foreign) = Foreign::find(folder)? {
        return Ok(foreign.held_bytes(limits, device));
    }
    let folder = Folder::open(folder)?;
    let functions = folder.functions();
    let has_states = functions.is_empty() || functions.iter().any(|name| name == DECODE);
    Ok(of_context(graph, limits, folder.context(), device, has_states))
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::Tiny;

    use super::*;

    #[test]
    fn states_are_counted_for_each_sequence_and_as_they_are_padded() {
        let graph = Tiny { layers: 3, ..Tiny::default() }.graph().unwrap();
        let [layers, heads, width] = Anatomy::of(&graph).unwrap().cache.unwrap();
        let limits = Limits { context: 40, kv_tokens: 80, batch_tokens: 40 };
        let history = (2 * layers * heads * 40 * width) as u64;
        assert_eq!(states_and_history(&graph, &limits, true, false), 2 * history);
        assert_eq!(states_and_history(&graph, &limits, false, false), 4 * history);
        let padded = 4 * heads.next_power_of_two() * 64 * width.next_multiple_of(32);
        let states = 2 * 2 * padded as u64;
        assert_eq!(states_and_history(&graph, &limits, true, true), 2 * (history + states));
    }
}
