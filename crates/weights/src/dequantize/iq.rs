//! Four-bit indices into a table of values: IQ4_NL, IQ4_XS and MXFP4.

use super::{f16_at, legacy::nibbles};

/// Levels of IQ4_NL and IQ4_XS, denser around zero as weights are.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of E2M1, so that they are whole; the scale is halved for it.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    look_up(&LEVELS, f16_at(block, 0), &block[2..], out);
}

/// Eight groups of 32 with 6-bit scales minus 32: two high bits each in a word, four low bits each.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    let (low, values) = (&block[4..8], &block[8..]);
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let l = low[group / 2] >> (group % 2 * 4) & 15;
        let h = (high >> (group * 2) & 3) as u8;
        let scale = d * (f32::from(l | h << 4) - 32.0);
        look_up(&LEVELS, scale, &values[group * 16..][..16], out);
    }
}

pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    look_up(&E2M1_DOUBLED, half_e8m0(block[0]), &block[1..], out);
}

fn look_up(table: &[i8; 16], scale: f32, values: &[u8], out: &mut [f32; 32]) {
    for (value, q) in out.iter_mut().zip(nibbles(values)) {
        *value = scale * f32::from(table[usize::from(q)]);
    }
}

/// Half of the power of two that an E8M0 byte stands for: `2^(e - 128)`.
fn half_e8m0(e: u8) -> f32 {
    // The two smallest are subnormal.
    let bits = if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 };
    f32::from_bits(bits)
}
