use super::*;

impl QuantizedRows {
    /// What element `i` of all rows, each row that stands for one taken by itself, is in units of its
    /// block's scale.
    pub(crate) fn integer(&self, i: usize) -> i32 {
        let (row, col) = (i / self.cols, i % self.cols);
        let part = col / BLOCK / PART;
        let list = row * self.cols / CHUNK + part * PART * CHUNKS;
        let count = self.counts[row * self.parts() + part] as usize;
        let found = self.outliers[list..list + count]
            .iter()
            .find(|outlier| outlier.chunk as usize == col / CHUNK);
        let high = found.map_or(0, |outlier| outlier.high[col % CHUNK]);
        HIGH * i32::from(high) + i32::from(self.blocks[i / BLOCK].low[i % BLOCK])
    }

    /// What element `i` of the activations became.
    pub(crate) fn value(&self, i: usize) -> f64 {
        let (row, col) = (i / self.cols, i % self.cols);
        let rows = row * self.passes..(row + 1) * self.passes;
        let value = |row: usize| {
            let at = row * self.cols + col;
            f64::from(self.integer(at)) * f64::from(self.blocks[at / BLOCK].scale)
        };
        rows.map(value).sum()
    }
}

/// The integers of all blocks.
fn integers(q: &QuantizedRows) -> Vec<i32> {
    (0..BLOCK * q.blocks.len()).map(|i| q.integer(i)).collect()
}

fn scales(q: &QuantizedRows) -> Vec<f32> {
    q.blocks.iter().map(|block| block.scale).collect()
}

fn pool(isa: Isa) -> Pool {
    Pool::new(2, isa).unwrap()
}

/// Values among which some stand out: blocks of both kinds.
fn wave(n: usize) -> Vec<f32> {
    let size = |i: usize| if i % 150 == 7 { 90.0 } else { 1.0 + (i % 13) as f32 };
    (0..n).map(|i| ((i * i % 997) as f32 * 0.37).sin() * size(i)).collect()
}

#[test]
fn values_are_within_half_a_step() {
    for isa in Isa::available() {
        let x = wave(3 * 576);
        let mut q = QuantizedRows::new();
        assert_eq!(q.quantize(&pool(isa), &x, 576, Rounding::Coarse).rows(), 3);
        for (i, (&v, integer)) in x.iter().zip(integers(&q)).enumerate() {
            let scale = q.blocks[i / BLOCK].scale;
            let error = (integer as f32 * scale - v).abs();
            assert!(error <= scale * 0.501, "{isa}: {v} became {integer} * {scale}");
        }
    }
}

#[test]
fn a_value_that_stands_out_does_not_coarsen_its_neighbours() {
    for isa in Isa::available() {
        let mut x: Vec<f32> = (0..4 * BLOCK).map(|i| (i as f32 * 0.7).sin()).collect();
        x[BLOCK + 5] = 12.0;
        let mut q = QuantizedRows::new();
        q.quantize(&pool(isa), &x, 4 * BLOCK, Rounding::Coarse);
        assert_eq!(q.counts, [1], "{isa}");
        assert_eq!(q.outliers[0].chunk as usize, CHUNKS + 1, "{isa}");
        let scale = scales(&q)[1];
        assert!(scale < 0.3 * 12.0 / MOST_LOW as f32, "{isa}: {scale}");
        assert_eq!(integers(&q)[BLOCK + 5], (12.0 / scale).round() as i32, "{isa}");
    }
}

#[test]
fn one_that_is_too_large_for_that_takes_what_step_it_needs() {
    let mut x = vec![0.0; 2048 * BLOCK];
    x[70] = 1e4;
    x[71] = 1.0;
    for isa in Isa::available() {
        let mut q = QuantizedRows::new();
        q.quantize(&pool(isa), &x, x.len(), Rounding::Coarse);
        assert_eq!((q.integer(70), q.integer(71)), (MOST, 1), "{isa}");
    }
}

#[test]
fn fine_rounding_leaves_little_over() {
    for isa in Isa::available() {
        let x = wave(3 * 96);
        let mut q = QuantizedRows::new();
        assert_eq!(q.quantize(&pool(isa), &x, 96, Rounding::Fine).rows(), 3);
        assert_eq!(q.counts, [0; 6], "{isa}");
        for (i, &v) in x.iter().enumerate() {
            let block = &x[i / BLOCK * BLOCK..][..BLOCK];
            let largest = block.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            let error = (q.value(i) - f64::from(v)).abs();
            assert!(error <= f64::from(largest) / 60_000.0, "{isa}: {v} became {}", q.value(i));
        }
    }
}

#[test]
fn low_parts_are_as_kernels_want_them() {
    for isa in Isa::available() {
        for rounding in [Rounding::Coarse, Rounding::Fine] {
            let x = wave(3 * 2400);
            let mut q = QuantizedRows::new();
            q.quantize(&pool(isa), &x, 2400, rounding);
            assert!(rounding == Rounding::Fine || q.counts.iter().all(|&n| n > 0), "{isa}");
            let low = q.blocks.iter().flat_map(|block| block.low);
            assert!(low.clone().all(|v| i32::from(v).abs() <= MOST_LOW), "{isa}");
        }
    }
}

#[test]
fn sums_are_those_of_the_integers() {
    let x = wave(64);
    let mut q = QuantizedRows::new();
    q.quantize(&pool(Isa::Portable), &x, 64, Rounding::Coarse);
    let integers = integers(&q);
    for half in 0..4 {
        let sum: i32 = integers[16 * half..16 * half + 16].iter().sum();
        let block = &q.blocks[half / 2];
        assert_eq!(block.minus16[half % 2], -sum);
        assert_eq!(block.scaled16[half % 2], sum as f32 * block.scale);
    }
    for block in &q.blocks {
        assert_eq!(block.minus32, block.minus16[0] + block.minus16[1]);
        assert_eq!(block.scaled32, -block.minus32 as f32 * block.scale);
    }
}

#[test]
fn zeros_tiny_and_special_values() {
    for isa in Isa::available() {
        let mut x = vec![0.0f32; 5 * BLOCK];
        x[BLOCK] = 1e-40;
        x[2 * BLOCK] = f32::NAN;
        x[3 * BLOCK + 7] = f32::NEG_INFINITY;
        x[4 * BLOCK] = f32::MAX;
        let mut q = QuantizedRows::new();
        q.quantize(&pool(isa), &x, BLOCK, Rounding::Coarse);
        assert_eq!(scales(&q)[..2], [0.0, 0.0]);
        assert!(q.blocks[2].scale.is_nan() && q.blocks[3].scale.is_nan());
        let integers = integers(&q);
        assert_eq!(integers[4 * BLOCK], MOST_LOW);
        assert!(integers[..4 * BLOCK].iter().all(|&v| v == 0));
    }
}

#[test]
fn all_instruction_sets_and_batches_agree_bit_for_bit() {
    // Three blocks, of which two are done together and one is left; among them are such of all kinds.
    let mut x = wave(33 * 96);
    x[..BLOCK].fill(0.0);
    x[96 + BLOCK..96 + 2 * BLOCK].fill(1e-38);
    x[5 * 96 + 40] = f32::NAN;
    x[6 * 96] = f32::INFINITY;
    x[7 * 96 + 95] = f32::MAX;
    // Numbers that are none are equal here.
    let all = |q: &QuantizedRows| q.blocks.iter().map(|b| format!("{b:?}")).collect::<Vec<_>>();
    let mut expected = QuantizedRows::new();
    expected.quantize(&pool(Isa::Portable), &x, 96, Rounding::Coarse);
    for isa in Isa::available() {
        for rows in [1, 2, 31, 33] {
            let mut q = QuantizedRows::new();
            q.quantize(&pool(isa), &x[..rows * 96], 96, Rounding::Coarse);
            assert_eq!(integers(&q)[..], integers(&expected)[..rows * 96], "{isa}");
            assert_eq!(all(&q)[..], all(&expected)[..rows * 3], "{isa}");
        }
    }
}

#[test]
fn refilling_does_not_move_the_buffers() {
    let (pool, x) = (pool(Isa::detect()), wave(8 * 64));
    let mut q = QuantizedRows::new();
    q.quantize(&pool, &x, 64, Rounding::Coarse);
    let before = (q.blocks.as_ptr(), q.outliers.as_ptr());
    q.quantize(&pool, &x[..64], 64, Rounding::Coarse);
    q.quantize(&pool, &x, 64, Rounding::Coarse);
    assert_eq!((q.blocks.as_ptr(), q.outliers.as_ptr()), before);
}
