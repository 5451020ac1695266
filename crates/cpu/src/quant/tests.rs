use super::*;

/// The integers of all blocks.
fn integers(q: &QuantizedRows) -> Vec<i32> {
    let parts = q.values.chunks(2 * BLOCK).flat_map(|block| {
        let (high, low) = block.split_at(BLOCK);
        high.iter().zip(low).map(|(&high, &low)| HIGH * i32::from(high) + i32::from(low))
    });
    parts.collect()
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
        assert_eq!(q.quantize(&pool(isa), &x, 576, Rounding::ByNeed).rows(), 3);
        for (i, (&v, integer)) in x.iter().zip(integers(&q)).enumerate() {
            let scale = q.scale[i / BLOCK];
            let error = (integer as f32 * scale - v).abs();
            assert!(error <= scale * 0.501, "{isa}: {v} became {integer} * {scale}");
        }
    }
}

#[test]
fn blocks_that_stand_out_of_their_row_have_more_bits() {
    for isa in Isa::available() {
        let mut x: Vec<f32> = (0..4 * BLOCK).map(|i| (i as f32 * 0.7).sin()).collect();
        x[BLOCK + 5] = 20.0;
        let mut q = QuantizedRows::new();
        q.quantize(&pool(isa), &x, 4 * BLOCK, Rounding::ByNeed);
        for (block, integers) in integers(&q).chunks(BLOCK).enumerate() {
            let most = if block == 1 { MOST } else { MOST_COARSE };
            assert_eq!(integers.iter().map(|v| v.abs()).max(), Some(most), "{isa}, block {block}");
        }
        q.quantize(&pool(isa), &x, 4 * BLOCK, Rounding::Fine);
        for integers in integers(&q).chunks(BLOCK) {
            assert_eq!(integers.iter().map(|v| v.abs()).max(), Some(MOST), "{isa}");
        }
    }
}

#[test]
fn parts_are_as_kernels_want_them() {
    for isa in Isa::available() {
        let x = wave(3 * 576);
        let mut q = QuantizedRows::new();
        q.quantize(&pool(isa), &x, 576, Rounding::ByNeed);
        assert!(isa == Isa::Avx2 || q.fine.contains(&true) && q.fine.contains(&false), "{isa}");
        for (values, &fine) in q.values.chunks(2 * BLOCK).zip(&q.fine) {
            if fine {
                assert!(values.iter().all(|&v| i32::from(v).abs() <= MOST_PART), "{isa}");
            } else {
                assert!(isa != Isa::Avx2 && values[..BLOCK].iter().all(|&v| v == 0), "{isa}");
            }
        }
    }
}

#[test]
fn sums_are_those_of_the_integers() {
    let x = wave(64);
    let mut q = QuantizedRows::new();
    q.quantize(&pool(Isa::Portable), &x, 64, Rounding::ByNeed);
    let integers = integers(&q);
    for half in 0..4 {
        let sum: i32 = integers[16 * half..16 * half + 16].iter().sum();
        assert_eq!(q.minus16[half], -sum);
        assert_eq!(q.scaled16[half], sum as f32 * q.scale[half / 2]);
    }
    assert_eq!(q.minus32[1], q.minus16[2] + q.minus16[3]);
    assert_eq!(q.scaled32[1], -q.minus32[1] as f32 * q.scale[1]);
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
        q.quantize(&pool(isa), &x, BLOCK, Rounding::ByNeed);
        assert_eq!(q.scale[..2], [0.0, 0.0]);
        assert!(q.scale[2].is_nan() && q.scale[3].is_nan());
        let integers = integers(&q);
        assert_eq!(integers[4 * BLOCK], MOST_COARSE);
        assert!(integers[..4 * BLOCK].iter().all(|&v| v == 0));
    }
}

#[test]
fn all_instruction_sets_and_batches_agree_bit_for_bit() {
    let x = wave(33 * 96);
    let mut expected = QuantizedRows::new();
    expected.quantize(&pool(Isa::Portable), &x, 96, Rounding::ByNeed);
    for isa in Isa::available() {
        for rows in [1, 2, 31, 33] {
            let mut q = QuantizedRows::new();
            q.quantize(&pool(isa), &x[..rows * 96], 96, Rounding::ByNeed);
            assert_eq!(integers(&q)[..], integers(&expected)[..rows * 96], "{isa}");
            assert_eq!(q.scale[..], expected.scale[..rows * 3], "{isa}");
        }
    }
}

#[test]
fn refilling_does_not_move_the_buffers() {
    let (pool, x) = (pool(Isa::detect()), wave(8 * 64));
    let mut q = QuantizedRows::new();
    q.quantize(&pool, &x, 64, Rounding::ByNeed);
    let before = q.values.as_ptr();
    q.quantize(&pool, &x[..64], 64, Rounding::ByNeed);
    q.quantize(&pool, &x, 64, Rounding::ByNeed);
    assert_eq!(q.values.as_ptr(), before);
}
