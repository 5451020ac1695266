//! The best tokens of rows of logits, found on the device: the host reads some bytes of a row in the place
//! of all of it, and the next pass can begin without the host.

use baton_graph::{Batch, Best, Rows};

use crate::launch::{Grid, Launch, Source};
use crate::memory::Buffers;
use crate::plan::Plan;
use crate::{Constant, Gpu, GpuError, Use};

/// Most tokens of a row that are found.
pub(crate) const MOST_BEST: usize = 64;
/// Most passes that are submitted together.
pub(crate) const MOST_TOGETHER: usize = 16;
/// Words of a row of what is found: the number of tokens, the sum of exponentials, and the tokens.
const FOUND: usize = 2 + 2 * MOST_BEST;
/// Tokens of a group, which a workgroup looks through, and the chunks that it keeps the best of.
const GROUP: usize = 4096;
const CHUNKS: usize = 64;

macro_rules! source {
    ($name:literal, $writes:literal, $goes_on:literal, $file:literal, $sums:literal) => {
        Source {
            name: $name,
            files: &[
                include_str!("shaders/best.wgsl"),
                include_str!(concat!("shaders/", $file, ".wgsl")),
                include_str!(concat!("shaders/", $sums, ".wgsl")),
            ],
            reads: 1,
            writes: $writes,
            goes_on: $goes_on,
            enables: &[],
        }
    };
}

const CHUNKS_KERNEL: [Source; 2] = [
    source!("BEST_CHUNKS", 1, false, "best_chunks", "best_workgroup"),
    source!("BEST_CHUNKS", 1, false, "best_chunks", "best_subgroup"),
];
const JOIN_KERNEL: [Source; 2] = [
    source!("BEST_JOIN", 4, true, "best_join", "best_workgroup"),
    source!("BEST_JOIN", 4, true, "best_join", "best_subgroup"),
];

/// How many tokens of each row must be found, if that is enough for all rows that a batch wants.
pub(crate) fn wanted(batch: &Batch) -> Option<usize> {
    let mut most = 0;
    for span in &batch.spans {
        match span.rows {
            Rows::None => {}
            Rows::Best(k @ 1..=MOST_BEST) => most = most.max(k),
            _ => return None,
        }
    }
    Some(most).filter(|&most| most > 0)
}

/// Buffers of what is found.
#[derive(Debug)]
pub(crate) struct Finder {
    /// Bests of chunks and groups.
    parts: wgpu::Buffer,
    /// [`FOUND`] words of each row, of one pass after the other.
    pub(crate) found: wgpu::Buffer,
}

impl Finder {
    /// For so many rows of `vocab` logits, or fewer in each of several passes.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn new(gpu: &Gpu, vocab: usize, rows: usize) -> Result<Finder, GpuError> {
        let groups = vocab.div_ceil(GROUP);
        let parts = 8 * (rows * groups * (CHUNKS + 2)) as u64;
        Ok(Finder {
            parts: gpu.buffer("parts of the best tokens", parts, Use::Storage)?,
            found: gpu.buffer(
                "best tokens",
                Finder::bytes_of(rows.max(MOST_TOGETHER)),
                Use::Storage,
            )?,
        })
    }

    /// Bytes of what is found of so many rows.
    pub(crate) fn bytes_of(rows: usize) -> u64 {
        (4 * rows * FOUND) as u64
    }

    /// How many passes that each have so many rows there is room for.
    pub(crate) fn passes(&self, rows: usize) -> usize {
        (self.found.size() / Finder::bytes_of(rows.max(1))) as usize
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        (self.parts.size() + self.found.size()) as usize
    }

    /// What looks for them in the plan's result, puts the best one of each row where the next pass finds
    /// its tokens, and goes on in the tables.
    ///
    /// # Errors
    /// If the driver refuses a shader.
    pub(crate) fn launches(
        &self,
        gpu: &Gpu,
        plan: &Plan,
        buffers: &Buffers,
    ) -> Result<[Launch; 3], GpuError> {
        let vocab = plan.result.cols;
        let groups = vocab.div_ceil(GROUP) as u32;
        let subgroups = gpu.features().subgroups;
        let kind = usize::from(subgroups.is_some());
        let logits = buffers.of(&plan.result);
        let new = |source, size: u32, bound: &[&wgpu::Buffer], grid| {
            let constants: [(&str, Constant); 7] = [
                ("ONE", (grid == Grid::Join(1, true)).into()),
                ("SIZE", size.into()),
                ("TURNS", (CHUNKS as u32).div_ceil(size).into()),
                ("MOST", (MOST_BEST as u32).into()),
                ("GROUPS", groups.into()),
                ("FOUND", (FOUND as u32).into()),
                ("PARTS", subgroups.map_or(1, |(min, _)| size.div_ceil(min)).into()),
            ];
            let params = [vocab, plan.input_vocab].map(|n| Constant::from(n as u32));
            let bound = [&[&buffers.tables, logits, &self.parts], bound].concat();
            Launch::new(gpu, source, &constants, &bound, &params, grid)
        };
        // One subgroup needs no barriers, of which the joining kernel would have many.
        let one = subgroups.filter(|(min, max)| min == max).map_or(64, |(size, _)| size.min(64));
        let next = [&self.found, &buffers.tokens, &buffers.positions];
        Ok([
            new(&CHUNKS_KERNEL[kind], 256, &[], Grid::Best(groups))?,
            new(&JOIN_KERNEL[kind], one, &next, Grid::Join(1, true))?.in_turn(),
            new(&JOIN_KERNEL[kind], one, &next, Grid::Join(1, false))?.in_turn(),
        ])
    }
}

/// What was found of each row, cut to the numbers `wanted`, from the words that the device left.
pub(crate) fn read(
    words: &[u32],
    wanted: impl Iterator<Item = usize>,
) -> impl Iterator<Item = Best> {
    let row = |(words, wanted): (&[u32], usize)| {
        let pairs = words[2..].chunks_exact(2).take(wanted.min(words[0] as usize));
        let tokens: Vec<_> = pairs.map(|pair| (pair[0], f32::from_bits(pair[1]))).collect();
        let most = tokens.first().map_or(f32::NEG_INFINITY, |&(_, logit)| logit);
        let log_sum_exp = match most.is_finite() {
            true => f64::from(most) + f64::from(f32::from_bits(words[1])).ln(),
            false if most == f32::NEG_INFINITY => f64::NEG_INFINITY,
            false => f64::NAN,
        };
        Best { tokens, log_sum_exp }
    };
    words.chunks_exact(FOUND).zip(wanted).map(row)
}

#[cfg(test)]
mod tests;
