//! The two small matrix products of attention: queries with keys, weights with values.

use std::ops::Range;

use crate::kv::PAGE;
use crate::simd::Simd;

/// What keys and values are stored as: f32, or the bits of f16.
pub(super) trait Element: Copy {
    /// Reads a vector.
    ///
    /// # Safety
    /// `from` is valid for reads of a vector's elements.
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V;

    /// Tells that `vectors` vectors somewhat behind `from` will be read soon, if they may be in no cache.
    fn expect<S: Simd>(s: S, from: *const Self, vectors: usize);
}

/// How far ahead a cache of keys and values is asked for: runs are too short for the processor to learn
/// where they go.
const AHEAD: usize = 2048;

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_at(from) }
    }

    #[inline(always)]
    fn expect<S: Simd>(_: S, _: *const f32, _: usize) {}
}

impl Element for u16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u16) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_half_at(from) }
    }

    #[inline(always)]
    fn expect<S: Simd>(s: S, from: *const u16, vectors: usize) {
        let mut at = 0;
        while at < 2 * vectors * S::LANES {
            s.prefetch(from.cast::<u8>().wrapping_add(AHEAD + at));
            at += 64;
        }
    }
}

/// Widens f16 bits, a multiple of 16 of them.
#[inline(always)]
pub(super) fn widen<S: Simd>(s: S, from: &[u16], to: &mut [f32]) {
    assert!(from.len() == to.len() && from.len().is_multiple_of(S::LANES));
    for i in (0..from.len()).step_by(S::LANES) {
        // SAFETY: LANES elements from `i` on are within both.
        unsafe { s.store_at(to.as_mut_ptr().add(i), s.load_half_at(from.as_ptr().add(i))) };
    }
}

/// Calls `$body` with the constants `$R` and `$C` for blocks of rows and vectors that cover
/// `$rows` rows and `$vectors` vectors, an even number; a block starts at row `$row` and vector
/// `$vector`. Few shapes, since each is compiled for each instruction set.
macro_rules! blocks {
    ($rows:expr, $vectors:expr, |$row:ident, $vector:ident, $R:ident, $C:ident| $body:expr) => {{
        let (rows, vectors): (usize, usize) = ($rows, $vectors);
        let mut $row = 0;
        while $row < rows {
            let mut $vector = 0;
            macro_rules! run {
                ($r:literal, $c:literal) => {{
                    const $R: usize = $r;
                    const $C: usize = $c;
                    while $vector + $C <= vectors {
                        $body;
                        $vector += $C;
                    }
                }};
            }
            match rows - $row {
                // As many sums as there are registers for: few rows take a whole run of a token, so that
                // memory is read in order.
                4.. => {
                    if S::REGISTERS >= 32 {
                        run!(4, 4);
                    }
                    run!(4, 2);
                    $row += 4;
                }
                3 => {
                    if S::REGISTERS >= 32 {
                        run!(3, 4);
                    }
                    run!(3, 2);
                    $row += 3;
                }
                2 => {
                    if S::REGISTERS >= 32 {
                        run!(2, 8);
                    }
                    run!(2, 4);
                    run!(2, 2);
                    $row += 2;
                }
                _ => {
                    // One row alone needs more sums side by side to hide the latency of each.
                    if S::REGISTERS >= 32 {
                        run!(1, 8);
                    }
                    run!(1, 4);
                    run!(1, 2);
                    $row += 1;
                }
            }
        }
    }};
}

/// `out[r, t] = sum over d of queries[r, d] * keys[d, t]` for the first `cols` tokens of a page;
/// queries are `(rows, dim)`, keys `(dim, PAGE)`, `out` is `(rows, PAGE)`.
#[inline(always)]
pub(super) fn scores<S: Simd, E: Element>(
    s: S,
    queries: &[f32],
    keys: &[E],
    cols: usize,
    out: &mut [f32],
) {
    let (dim, rows) = (keys.len() / PAGE, out.len() / PAGE);
    assert!(queries.len() == rows * dim && keys.len() == dim * PAGE && out.len() == rows * PAGE);
    assert!(cols <= PAGE && cols.is_multiple_of(2 * S::LANES));
    let (queries, keys, out) = (queries.as_ptr(), keys.as_ptr(), out.as_mut_ptr());
    blocks!(rows, cols / S::LANES, |row, vector, R, C| {
        // SAFETY: the lengths were checked above; rows and vectors stay below theirs.
        unsafe {
            let col = vector * S::LANES;
            let queries = queries.add(row * dim);
            let mut sums = [[s.splat(0.0); C]; R];
            // A pointer that moves on, since a product of indices would be checked for overflow.
            let mut at = keys.add(col);
            for d in 0..dim {
                let mut key = [s.splat(0.0); C];
                E::expect(s, at, C);
                for c in 0..C {
                    key[c] = E::load(s, at.add(c * S::LANES));
                }
                at = at.wrapping_add(PAGE);
                for r in 0..R {
                    let query = s.splat(*queries.add(r * dim + d));
                    for c in 0..C {
                        sums[r][c] = s.mul_add(query, key[c], sums[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    s.store_at(out.add((row + r) * PAGE + col + c * S::LANES), sums[r][c]);
                }
            }
        }
    });
}

/// `out[r, i] += sum over t in tokens of weights[r, t] * values[t, i]`; weights are
/// `(rows, PAGE)`, values `(PAGE, stride)`, `out` is `(rows, stride)`.
#[inline(always)]
pub(super) fn accumulate<S: Simd, E: Element>(
    s: S,
    weights: &[f32],
    tokens: Range<usize>,
    values: &[E],
    stride: usize,
    out: &mut [f32],
) {
    let rows = weights.len() / PAGE;
    assert!(values.len() == PAGE * stride && out.len() == rows * stride);
    assert!(tokens.end <= PAGE && stride.is_multiple_of(2 * S::LANES));
    let (weights, values, out) = (weights.as_ptr(), values.as_ptr(), out.as_mut_ptr());
    blocks!(rows, stride / S::LANES, |row, vector, R, C| {
        // SAFETY: the lengths were checked above; rows and vectors stay below theirs.
        unsafe {
            let col = vector * S::LANES;
            let weights = weights.add(row * PAGE);
            let mut sums = [[s.splat(0.0); C]; R];
            for r in 0..R {
                for c in 0..C {
                    sums[r][c] = s.load_at(out.add((row + r) * stride + col + c * S::LANES));
                }
            }
            let mut at = values.wrapping_add(tokens.start * stride + col);
            for t in tokens.clone() {
                let mut value = [s.splat(0.0); C];
                E::expect(s, at, C);
                for c in 0..C {
                    value[c] = E::load(s, at.add(c * S::LANES));
                }
                at = at.wrapping_add(stride);
                for r in 0..R {
                    let weight = s.splat(*weights.add(r * PAGE + t));
                    for c in 0..C {
                        sums[r][c] = s.mul_add(weight, value[c], sums[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    s.store_at(out.add((row + r) * stride + col + c * S::LANES), sums[r][c]);
                }
            }
        }
    });
}
