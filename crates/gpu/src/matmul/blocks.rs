//! Taking the blocks of files apart: the integers of a block in their order, and its scales as the
//! device keeps them.

use baton_weights::DType;

/// Levels of IQ4_NL and IQ4_XS.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Writes the integers of one block, a byte each, in the order of the weights. They are what
/// [`Form`](super::form::Form) says for the type.
pub(super) fn codes(dtype: DType, block: &[u8], out: &mut [u8]) {
    match dtype {
        DType::Q4_0 => nibbles(&block[2..], out, |q| q),
        DType::Q4_1 => nibbles(&block[4..], out, |q| q),
        DType::Q5_0 => fifth_bits(&block[2..6], &block[6..], out),
        DType::Q5_1 => fifth_bits(&block[4..8], &block[8..], out),
        DType::Q8_0 => out.copy_from_slice(&block[2..]),
        DType::Iq4Nl => nibbles(&block[2..], out, |q| LEVELS[usize::from(q)] as u8),
        // Minus zero becomes zero.
        DType::MxFp4 => nibbles(&block[1..], out, |q| if q == 8 { 0 } else { q }),
        DType::Iq4Xs => {
            for (values, out) in block[8..].chunks_exact(16).zip(out.chunks_exact_mut(32)) {
                nibbles(values, out, |q| LEVELS[usize::from(q)] as u8);
            }
        }
        DType::Q3_K => q3_k(block, out),
        DType::Q4_K => pairs_of_groups(&block[16..], out),
        DType::Q5_K => {
            pairs_of_groups(&block[48..], out);
            for (group, out) in out.chunks_exact_mut(32).enumerate() {
                for (q, high) in out.iter_mut().zip(&block[16..48]) {
                    *q |= (high >> group & 1) << 4;
                }
            }
        }
        DType::Q6_K => q6_k(block, out),
        _ => unreachable!("{dtype} is kept as floats or in another layout"),
    }
}

/// Writes a block's scales: what is kept for each chunk, and what for each 8 of them.
pub(super) fn scales(dtype: DType, block: &[u8], scale: &mut [u8], above: &mut [u8]) {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl => {
            scale.copy_from_slice(&block[..2]);
        }
        DType::Q4_1 | DType::Q5_1 => scale.copy_from_slice(&block[..4]),
        DType::MxFp4 => scale[0] = block[0],
        DType::Q4_K | DType::Q5_K => k_scales(block, above),
        DType::Q6_K => {
            scale.copy_from_slice(&block[192..208]);
            above.copy_from_slice(&block[208..]);
        }
        DType::Q3_K => {
            let packed = &block[96..108];
            for (group, scale) in scale.iter_mut().enumerate() {
                let low = packed[group % 8] >> (group / 8 * 4) & 15;
                let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
                *scale = (low | high << 4).wrapping_sub(32);
            }
            above.copy_from_slice(&block[108..]);
        }
        DType::Iq4Xs => {
            let high = u16::from_le_bytes([block[2], block[3]]);
            for (group, scale) in scale.chunks_exact_mut(2).enumerate() {
                let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
                let high = (high >> (group * 2) & 3) as u8;
                // Both halves of a chunk share it.
                scale.fill((low | high << 4).wrapping_sub(32));
            }
            above.copy_from_slice(&block[..2]);
        }
        _ => unreachable!("{dtype} is kept as floats or in another layout"),
    }
}

/// Writes integers of an MLX row from number `first` on: `bits` bits each, the least significant
/// first; those of 8 bits less 128, so that they are signed.
pub(super) fn affine_codes(bits: usize, row: &[u8], first: usize, out: &mut [u8]) {
    match bits {
        4 => {
            for (two, byte) in out.chunks_exact_mut(2).zip(&row[first / 2..]) {
                two.copy_from_slice(&[byte & 15, byte >> 4]);
            }
        }
        8 => out.iter_mut().zip(&row[first..]).for_each(|(q, byte)| *q = byte ^ 128),
        _ => {
            for (i, q) in out.iter_mut().enumerate() {
                let at = (first + i) * bits;
                let next = row.get(at / 8 + 1).copied().unwrap_or(0);
                let window = u16::from_le_bytes([row[at / 8], next]) >> (at % 8);
                *q = (window & ((1 << bits) - 1)) as u8;
            }
        }
    }
}

fn nibbles(bytes: &[u8], out: &mut [u8], map: impl Fn(u8) -> u8) {
    let (low, high) = out.split_at_mut(16);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = map(byte & 15);
        *high = map(byte >> 4);
    }
}

fn fifth_bits(bits: &[u8], low: &[u8], out: &mut [u8]) {
    nibbles(low, out, |q| q);
    let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    for (i, q) in out.iter_mut().enumerate() {
        *q |= ((bits >> i & 1) << 4) as u8;
    }
}

/// Each 32 bytes hold a group in their lower halves and the next one in the upper.
fn pairs_of_groups(bytes: &[u8], out: &mut [u8]) {
    for (bytes, out) in bytes.chunks_exact(32).zip(out.chunks_exact_mut(64)) {
        let (low, high) = out.split_at_mut(32);
        for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

fn q3_k(block: &[u8], out: &mut [u8]) {
    let (high, low) = (&block[..32], &block[32..96]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, shift) = (group / 4, group % 4 * 2);
        for ((q, low), high) in out.iter_mut().zip(&low[half * 32..]).zip(high) {
            *q = low >> shift & 3 | (high >> group & 1) << 2;
        }
    }
}

fn q6_k(block: &[u8], out: &mut [u8]) {
    let (low, high) = (&block[..128], &block[128..192]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, quarter) = (group / 4, group % 4);
        let low = &low[half * 64 + quarter % 2 * 32..][..32];
        let high = &high[half * 32..][..32];
        let (low_shift, high_shift) = (quarter / 2 * 4, quarter * 2);
        for ((q, low), high) in out.iter_mut().zip(low).zip(high) {
            *q = low >> low_shift & 15 | (high >> high_shift & 3) << 4;
        }
    }
}

/// The scale of scales and of minima, then the 12 bits of each chunk: see
/// `shaders/matmul_scales_k.wgsl`.
fn k_scales(block: &[u8], out: &mut [u8]) {
    let packed = &block[4..16];
    let both = |group: usize| {
        let i = group % 4;
        let (scale, min) = if group < 4 {
            (packed[i] & 63, packed[4 + i] & 63)
        } else {
            (packed[8 + i] & 15 | packed[i] >> 6 << 4, packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4)
        };
        u32::from(scale) | u32::from(min) << 6
    };
    let pair = |n: usize| both(2 * n) | both(2 * n + 1) << 12;
    let last = pair(3);
    out[..4].copy_from_slice(&block[..4]);
    for (n, out) in out[4..].chunks_exact_mut(4).enumerate() {
        let word = pair(n) | (last >> (8 * n) & 255) << 24;
        out.copy_from_slice(&word.to_le_bytes());
    }
}
