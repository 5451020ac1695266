use std::sync::Arc;

use baton_graph::{Limits, Pager, SeqId, Span};

use super::*;
use crate::Gpu;
use crate::plan::View;
use crate::step::{HEADER, PAGE, Room, Tables, passes};
use crate::testing::{Random, gpu};

/// Rows of logits as a plan's result, with what finds their best tokens.
struct Setting {
    gpu: Arc<Gpu>,
    vocab: usize,
    room: Room,
    plan: Plan,
    buffers: Buffers,
    finder: Finder,
    launches: [Launch; 3],
}

impl Setting {
    fn new(gpu: Arc<Gpu>, vocab: usize, readable: usize, rows: usize) -> Setting {
        let room = Room { rows, wanted: rows, pages: rows, tile: 32 };
        let plan = Plan {
            steps: Vec::new(),
            labels: Vec::new(),
            rotations: Vec::new(),
            slots: vec![crate::plan::SlotShape {
                width: vocab,
                height: crate::plan::Height::Wanted,
            }],
            caches: Vec::new(),
            result: View { slot: 0, stride: vocab, offset: 0, cols: vocab },
            input_vocab: readable,
            whole_texts: false,
            weight_bytes: 0,
        };
        let buffers = Buffers::new(&gpu, &plan, &room, PAGE).unwrap();
        let finder = Finder::new(&gpu, vocab, rows).unwrap();
        let launches = finder.launches(&gpu, &plan, &buffers).unwrap();
        Setting { gpu, vocab, room, plan, buffers, finder, launches }
    }

    /// The `k` best of each row, and the tokens for the next pass.
    fn find(&mut self, logits: &[f32], k: usize) -> (Vec<Best>, Vec<u32>) {
        let rows = logits.len() / self.vocab;
        let span = |seq| Span { seq: SeqId(seq), tokens: vec![0], rows: Rows::Best(k) };
        let batch = Batch { spans: (0..rows as u32).map(span).collect() };
        let limits = Limits { context: 8, kv_tokens: rows * PAGE, batch_tokens: rows };
        let mut pager = Pager::new(PAGE, &limits);
        pager.append_batch(&batch).unwrap();
        let mut tables = Tables::default();
        let pieces = passes(&batch, &pager, &self.room, true);
        tables.set(&batch, &pieces[0], &pager, &self.room, wanted(&batch));
        self.buffers.write(&self.gpu, &tables);
        let result = self.buffers.of(&self.plan.result);
        self.gpu.queue().write_buffer(result, 0, bytemuck::cast_slice(logits));
        let launches = &mut self.launches;
        let encode = |pass: &mut wgpu::ComputePass<'_>| {
            launches.iter_mut().for_each(|launch| launch.encode(pass, &tables.sizes));
        };
        self.gpu.submit("the best tokens", encode).unwrap();
        let words: Vec<u32> = self.gpu.read(&self.finder.found, 0..rows * FOUND).unwrap();
        let tokens = self.gpu.read(&self.buffers.tokens, 0..rows).unwrap();
        self.went_on(&tables);
        (read(&words, std::iter::repeat_n(k, rows)).collect(), tokens)
    }

    /// The tables are those of what comes next.
    fn went_on(&self, before: &Tables) {
        let words: Vec<u32> = self.gpu.read(&self.buffers.tables, 0..before.words.len()).unwrap();
        let positions: Vec<u32> =
            self.gpu.read(&self.buffers.positions, 0..before.positions.len()).unwrap();
        let next = |words: &[u32]| words.iter().map(|word| word + 1).collect::<Vec<u32>>();
        assert_eq!(positions, next(&before.positions));
        let mut expected = before.words.clone();
        for row in expected[HEADER..].chunks_exact_mut(4).take(before.positions.len()) {
            let further = next(&row[..3]);
            row[..3].copy_from_slice(&further);
        }
        assert_eq!(words, expected, "position, place and end");
    }
}

/// As the host orders tokens.
fn expected(row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let is_bad = |logit: f32| logit.is_nan() || logit == f32::INFINITY;
    let mut all: Vec<(u32, f32)> =
        (0..).zip(row.iter().copied()).filter(|&(_, logit)| logit != f32::NEG_INFINITY).collect();
    all.sort_by(|a, b| match (is_bad(a.1), is_bad(b.1)) {
        (false, false) => b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)),
        (a_bad, b_bad) => b_bad.cmp(&a_bad).then(a.0.cmp(&b.0)),
    });
    all.truncate(k);
    all
}

/// Rows of every kind that may come.
fn rows(vocab: usize, random: &mut Random) -> Vec<Vec<f32>> {
    let numbers = random.floats(vocab).iter().map(|x| 20.0 * x).collect();
    // Few values, so that many are equal, both zeros among them.
    let ties = random.floats(vocab).iter().map(|x| (3.0 * x).round()).collect();
    let mut masked: Vec<f32> = random.floats(vocab);
    let mut left = vec![f32::NEG_INFINITY; vocab];
    for logit in &mut masked {
        if random.float() < 0.9 {
            *logit = f32::NEG_INFINITY;
        }
    }
    let one = vocab * 2 / 3;
    left[one] = -1e30;
    let mut bad: Vec<f32> = random.floats(vocab);
    bad[vocab / 2] = f32::INFINITY;
    let mut not_a_number: Vec<f32> = random.floats(vocab);
    not_a_number[vocab - 1] = -f32::NAN;
    not_a_number[vocab / 3] = f32::NAN;
    let extremes = (0..vocab).map(|i| [f32::MIN, f32::MAX, 1e-45, -1e-45, -0.0, 0.0][i % 6]);
    let (nothing, down) = (vec![f32::NEG_INFINITY; vocab], (0..vocab).map(|i| -(i as f32)));
    let up = (0..vocab).map(|i| i as f32 / 100.0);
    let (extremes, down, up) = (extremes.collect(), down.collect(), up.collect());
    vec![numbers, ties, masked, left, bad, not_a_number, extremes, nothing, down, up]
}

#[test]
fn the_best_tokens_are_those_that_the_host_finds() {
    for plain in [false, true] {
        let mut random = Random(5);
        for vocab in [1, 3, 63, 64, 65, 97, 4095, 4096, 4097, 12_345, 151_937] {
            let rows = rows(vocab, &mut random);
            let mut setting = Setting::new(gpu(plain), vocab, vocab, rows.len());
            for k in [1, 7, 64] {
                let (found, tokens) = setting.find(&rows.concat(), k);
                for (at, row) in rows.iter().enumerate() {
                    let what = format!("row {at} of {vocab}, the best {k}");
                    let expected = expected(row, k);
                    let bits = |best: &[(u32, f32)]| -> Vec<(u32, u32)> {
                        best.iter().map(|&(id, logit)| (id, logit.to_bits())).collect()
                    };
                    assert_eq!(bits(&found[at].tokens), bits(&expected), "{what}");
                    assert_eq!(tokens[at], expected.first().map_or(0, |best| best.0), "{what}");
                    check_sum(&what, row, &found[at]);
                }
            }
        }
    }
}

fn check_sum(what: &str, row: &[f32], found: &Best) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if row.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        assert!(found.log_sum_exp.is_nan(), "{what}");
    } else if most == f32::NEG_INFINITY {
        assert_eq!(found.log_sum_exp, f64::NEG_INFINITY, "{what}");
    } else {
        let most = f64::from(most);
        let sum: f64 = row.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
        let (found, expected) = (found.log_sum_exp, most + sum.ln());
        let most = 1e-5 + 1e-15 * most.abs();
        assert!((found - expected).abs() < most, "{what}: {found}, not {expected}");
    }
}

/// Models may have more logits than tokens that they can read.
#[test]
fn what_cannot_be_read_is_not_put_before_the_next_pass() {
    let mut setting = Setting::new(gpu(true), 100, 10, 1);
    let mut logits = vec![0.0; 100];
    logits[50] = 1.0;
    let (found, tokens) = setting.find(&logits, 1);
    assert_eq!((found[0].tokens[0].0, tokens[0]), (50, 9));
}

#[test]
fn best_tokens_are_enough_only_if_they_are_for_every_row() {
    let span = |rows| Span { seq: SeqId(0), tokens: vec![0], rows };
    let wanted = |rows: &[Rows]| wanted(&Batch { spans: rows.iter().map(|&r| span(r)).collect() });
    assert_eq!(wanted(&[Rows::Best(3), Rows::None, Rows::Best(40)]), Some(40));
    assert_eq!(wanted(&[Rows::Best(3), Rows::Last]), None);
    assert_eq!(wanted(&[Rows::None]), None);
    assert_eq!((wanted(&[Rows::Best(0)]), wanted(&[Rows::Best(65)])), (None, None));
}
