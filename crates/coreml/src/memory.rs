//! What running packages takes of memory beside their weights and the cache.

use baton_graph::{Graph, Limits};

use crate::lower::{Anatomy, MilLowering};

/// Bytes of what functions keep and are given of the cache: the states of as many sequences as have whole contexts in
/// it, if single tokens go through them, and the longest history of a prefill function. On a `device` they are in
/// half precision, in the interpreter in single.
pub fn states_and_history(graph: &Graph, limits: &Limits, device: bool, has_states: bool) -> u64 {
    let Some([layers, heads, width]) = Anatomy::of(graph).ok().and_then(|found| found.cache) else {
        return 0;
    };
    let each: u64 = if device { 2 } else { 4 };
    // Keys, and as many values.
    let bytes = |shape: [usize; 4]| {
        let all = shape.iter().fold(2 * each, |n, &dim| n.saturating_mul(dim as u64));
        if shape.contains(&0) { 0 } else { all }
    };
    let history = [layers, heads, limits.context, width];
    let state =
        MilLowering { pad_states: true, ..MilLowering::default() }.padded_state(history, [true; 3]);
    let sequences = (limits.kv_tokens / limits.context.max(1)).max(1) as u64;
    let states = if has_states { bytes(state).saturating_mul(sequences) } else { 0 };
    states.saturating_add(bytes(history))
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
