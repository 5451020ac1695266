//! Quantized keys and values of one head in one page: blocks of [`KvType::BLOCK`] features of a
//! token, each with a scale in half precision.
//!
//! A few features of keys are much larger than the others and would make the steps of their blocks coarse. So
//! heads are [turned](turn) before they are quantized, by a matrix that spreads every feature over all:
//! queries that are turned as well have the same scores, and sums of turned values are turned back.
//!
//! Codes come first, then the scales; both lie as the f16 elements would: feature by feature for
//! keys, token by token for values. A byte of 4-bit codes holds a block's features `i` and
//! `i + 16`.

use std::ops::Range;

use baton_graph::KvType;
use half::f16;

use super::PAGE;
use crate::matmul::single;

const BLOCK: usize = KvType::BLOCK;

/// How features and tokens follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// `(features, PAGE)`: keys.
    Features,
    /// `(PAGE, features)`: values.
    Tokens,
}

impl Order {
    /// Index of a token's element `i` of `n`.
    #[inline(always)]
    fn at(self, token: usize, i: usize, n: usize) -> usize {
        match self {
            Order::Features => i * PAGE + token,
            Order::Tokens => token * n + i,
        }
    }
}

/// Bytes of a block's codes.
#[inline(always)]
fn code_bytes(kind: KvType) -> usize {
    match kind {
        KvType::Q4_0 => BLOCK / 2,
        _ => BLOCK,
    }
}

/// 16-bit units that `blocks` blocks of each token take in a page.
pub(super) fn units(kind: KvType, blocks: usize) -> usize {
    PAGE * blocks * (code_bytes(kind) / 2 + 1)
}

/// The bytes of 16-bit units.
#[inline(always)]
fn bytes(units: &[u16]) -> &[u8] {
    // SAFETY: any bytes are u8, and the length is that of the units.
    unsafe { std::slice::from_raw_parts(units.as_ptr().cast(), 2 * units.len()) }
}

#[inline(always)]
fn bytes_mut(units: &mut [u16]) -> &mut [u8] {
    // SAFETY: as above; any bytes are units as well.
    unsafe { std::slice::from_raw_parts_mut(units.as_mut_ptr().cast(), 2 * units.len()) }
}

/// Most features that are turned together: a multiple of a block.
const TURNED: usize = 128;

/// How many of a head's features are turned together: the largest power of two that divides their
/// number, up to 128.
fn together(features: usize) -> usize {
    (1 << features.trailing_zeros().min(31)).min(TURNED)
}

/// Turns the features of a head by a Walsh-Hadamard matrix, which is its own inverse, some
/// [together].
#[inline(always)]
pub(crate) fn turn(head: &mut [f32]) {
    turn_by(together(head.len()), head);
}

#[inline(always)]
fn turn_by(together: usize, head: &mut [f32]) {
    let factor = 1.0 / (together as f32).sqrt();
    for part in head.chunks_exact_mut(together) {
        let mut half = 1;
        while half < together {
            for pair in part.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        for x in part {
            *x *= factor;
        }
    }
}

/// Turns and quantizes one token's features, zeros after the last, into `page`.
#[inline(always)]
pub(super) fn put(kind: KvType, order: Order, token: usize, features: &[f32], page: &mut [u16]) {
    let blocks = features.len().div_ceil(BLOCK);
    let each = code_bytes(kind);
    let (codes, scales) = page.split_at_mut(PAGE * blocks * each / 2);
    let codes = bytes_mut(codes);
    // What is turned together lies in one of these parts.
    let together = together(features.len());
    for (part, features) in features.chunks(TURNED).enumerate() {
        let mut turned = [0.0; TURNED];
        turned[..features.len()].copy_from_slice(features);
        turn_by(together, &mut turned[..features.len()]);
        for (b, block) in turned[..features.len().next_multiple_of(BLOCK)]
            .as_chunks::<BLOCK>()
            .0
            .iter()
            .enumerate()
        {
            let b = part * (TURNED / BLOCK) + b;
            let (scale, block) = quantize(kind, block);
            scales[order.at(token, b, blocks)] = scale.to_bits();
            for (i, &code) in block[..each].iter().enumerate() {
                codes[order.at(token, b * each + i, blocks * each)] = code;
            }
        }
    }
}

/// The scale and the codes of a block, as ggml's formats of the same names have them.
#[inline(always)]
fn quantize(kind: KvType, x: &[f32; BLOCK]) -> (f16, [u8; BLOCK]) {
    // The element of largest magnitude, with its sign.
    let extreme = x.iter().fold(0.0f32, |a, &b| if b.abs() > a.abs() { b } else { a });
    let mut codes = [0; BLOCK];
    let inverse = |scale: f32| if scale == 0.0 { 0.0 } else { 1.0 / scale };
    if kind == KvType::Q4_0 {
        let scale = extreme / -8.0;
        let inverse = inverse(scale);
        let code = |v: f32| (v * inverse + 8.5).clamp(0.0, 15.0) as u8;
        for i in 0..BLOCK / 2 {
            codes[i] = code(x[i]) | code(x[i + BLOCK / 2]) << 4;
        }
        (f16::from_f32(scale), codes)
    } else {
        let scale = extreme.abs() / 127.0;
        let inverse = inverse(scale);
        for (code, v) in codes.iter_mut().zip(x) {
            *code = (v * inverse).round_ties_even() as i8 as u8;
        }
        (f16::from_f32(scale), codes)
    }
}

/// Writes the turned features `(features, PAGE)` of the first `cols` tokens as f32.
#[inline(always)]
pub(crate) fn keys(kind: KvType, page: &[u16], cols: usize, out: &mut [f32]) {
    let blocks = (out.len() / PAGE).div_ceil(BLOCK);
    let each = code_bytes(kind);
    let (codes, scales) = page.split_at(PAGE * blocks * each / 2);
    let codes = bytes(codes);
    let mut scale = [0.0f32; PAGE];
    for (b, out) in out.chunks_mut(BLOCK * PAGE).enumerate() {
        let halves = &scales[b * PAGE..(b + 1) * PAGE];
        for (scale, &half) in scale[..cols].iter_mut().zip(halves) {
            *scale = single(half);
        }
        for (i, out) in out.chunks_exact_mut(PAGE).enumerate() {
            let codes = &codes[(b * each + i % each) * PAGE..][..PAGE];
            // Loops, not closures, which would be compiled without the machine's vector instructions.
            let all = out[..cols].iter_mut().zip(&codes[..cols]).zip(&scale);
            match (kind, i < each) {
                (KvType::Q4_0, true) => {
                    for ((x, c), s) in all {
                        *x = low(*c) * s;
                    }
                }
                (KvType::Q4_0, false) => {
                    for ((x, c), s) in all {
                        *x = high(*c) * s;
                    }
                }
                _ => {
                    for ((x, c), s) in all {
                        *x = f32::from(*c as i8) * s;
                    }
                }
            }
        }
    }
}

/// Writes the turned features of some tokens as f32, `stride` apart: a whole number of blocks.
#[inline(always)]
pub(crate) fn values(
    kind: KvType,
    page: &[u16],
    tokens: Range<usize>,
    stride: usize,
    out: &mut [f32],
) {
    let blocks = stride / BLOCK;
    let each = code_bytes(kind);
    let (codes, scales) = page.split_at(PAGE * blocks * each / 2);
    let codes = bytes(codes);
    for t in tokens {
        let out = out[t * stride..(t + 1) * stride].chunks_exact_mut(BLOCK);
        let codes = codes[t * blocks * each..(t + 1) * blocks * each].chunks_exact(each);
        for ((out, codes), &half) in out.zip(codes).zip(&scales[t * blocks..]) {
            let scale = single(half);
            if kind == KvType::Q4_0 {
                let (first, second) = out.split_at_mut(each);
                for (x, c) in first.iter_mut().zip(codes) {
                    *x = low(*c) * scale;
                }
                for (x, c) in second.iter_mut().zip(codes) {
                    *x = high(*c) * scale;
                }
            } else {
                for (x, c) in out.iter_mut().zip(codes) {
                    *x = f32::from(*c as i8) * scale;
                }
            }
        }
    }
}

#[inline(always)]
fn low(code: u8) -> f32 {
    f32::from(code & 15) - 8.0
}

#[inline(always)]
fn high(code: u8) -> f32 {
    f32::from(code >> 4) - 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * i % 997) as f32 * 0.37).sin() * 3.0).collect()
    }

    #[test]
    fn what_is_put_in_is_read_back_within_half_a_step() {
        for kind in [KvType::Q8_0, KvType::Q4_0] {
            for dim in [32usize, 48, 64, 160, 192, 256] {
                let blocks = dim.div_ceil(BLOCK);
                let stride = blocks * BLOCK;
                let mut key_page = vec![0; units(kind, blocks)];
                let mut value_page = key_page.clone();
                let rows: Vec<Vec<f32>> = (0..PAGE).map(|t| wave(t + dim)[t..].to_vec()).collect();
                for (token, row) in rows.iter().enumerate() {
                    put(kind, Order::Features, token, row, &mut key_page);
                    put(kind, Order::Tokens, token, row, &mut value_page);
                }
                let mut k = vec![0.0; dim * PAGE];
                let mut v = vec![0.0; PAGE * stride];
                keys(kind, &key_page, PAGE, &mut k);
                values(kind, &value_page, 0..PAGE, stride, &mut v);
                for (token, row) in rows.iter().enumerate() {
                    let mut row = row.clone();
                    turn(&mut row);
                    for (block, row) in row.chunks(BLOCK).enumerate() {
                        let largest = row.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                        // The 4-bit codes reach 8 steps to one side, 7 to the other.
                        let step = largest / if kind == KvType::Q8_0 { 127.0 } else { 8.0 };
                        // Scales are rounded to half precision.
                        let most = step * if kind == KvType::Q8_0 { 0.57 } else { 1.01 };
                        for (i, &x) in row.iter().enumerate() {
                            let d = block * BLOCK + i;
                            let (k, v) = (k[d * PAGE + token], v[token * stride + d]);
                            assert_eq!(k, v, "{kind} {dim}: token {token}, feature {d}");
                            assert!((k - x).abs() <= most, "{kind} {dim}: {x} became {k}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_turned_twice_is_as_before_and_products_stay() {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        for dim in [1usize, 24, 64, 80, 96, 128, 160, 192, 256] {
            let (a, b) = (wave(dim), wave(2 * dim)[dim..].to_vec());
            let (mut c, mut d) = (a.clone(), b.clone());
            turn(&mut c);
            turn(&mut d);
            let bound = 1e-5 * dot(&a, &a).sqrt() * dot(&b, &b).sqrt();
            assert!((dot(&a, &b) - dot(&c, &d)).abs() <= bound, "{dim} features");
            assert!(dim == 1 || a != c);
            turn(&mut c);
            assert!(a.iter().zip(&c).all(|(a, c)| (a - c).abs() < 1e-5), "{dim} features");
        }
    }

    #[test]
    fn one_large_feature_does_not_spoil_the_others() {
        let mut row = wave(64);
        row[5] = 100.0;
        let mut page = vec![0; units(KvType::Q4_0, 2)];
        put(KvType::Q4_0, Order::Tokens, 0, &row, &mut page);
        let mut out = vec![0.0; PAGE * 64];
        values(KvType::Q4_0, &page, 0..1, 64, &mut out);
        turn(&mut out[..64]);
        let error = row.iter().zip(&out).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // A step of 100 / 8 would make most of the others zero.
        assert!(error < 3.0, "{error}");
    }

    #[test]
    fn zeros_stay_zeros() {
        for kind in [KvType::Q8_0, KvType::Q4_0] {
            let mut page = vec![0xffff; units(kind, 1)];
            put(kind, Order::Tokens, 3, &[0.0; 32], &mut page);
            let mut out = vec![1.0; PAGE * 32];
            values(kind, &page, 3..4, 32, &mut out);
            assert!(out[3 * 32..4 * 32].iter().all(|&x| x == 0.0));
        }
    }
}
