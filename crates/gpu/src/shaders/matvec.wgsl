// Products of quantized weights with few rows of activations, which are quantized too: see
// integers.wgsl. Integers are multiplied four at a time; what is converted to floats is the sum over
// a chunk.

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y)
        + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// This lane's part of ROWS outputs for COLUMNS tokens. It takes two chunks at a time.
fn products(group: u32, lane: u32, at: Place) -> array<f32, VALUES> {
    let pairs = (p.chunks + 1u) / 2u;
    //each R ROWS
    let row_R = at.row + row_of(group, R);
    //each T COLUMNS
    var sum_R_T = 0.0;
    //end
    //end
    //each T COLUMNS
    let token_T = (at.x + min(T, at.tokens - 1u)) * p.x_stride;
    //end
    // Little work is done in one go: all of it is under way at once.
    let turns = (pairs + LANES - 1u) / LANES;
    let straight = turns * VALUES <= 4u;
    var n = lane;
    for (var turn = 0u; !straight || turn < turns; turn++) {
        if ((!straight || pairs % LANES != 0u) && n >= pairs) {
            break;
        }
        let c = 2u * n;
        //each R ROWS
        let a_low_R = codes(row_R, c, 0u);
        let a_high_R = codes(row_R, c, 1u);
        let b_low_R = codes(row_R, c + 1u, 0u);
        let b_high_R = codes(row_R, c + 1u, 1u);
        let scales_R = pair_of_scales(row_R * p.chunks + c);
        //end
        //each T COLUMNS
        let x_a_low_T = x[token_T + n];
        let x_a_high_T = x[token_T + pairs + n];
        let x_b_low_T = x[token_T + 2u * pairs + n];
        let x_b_high_T = x[token_T + 3u * pairs + n];
        let both_T = x[token_T + 4u * pairs + n];
        //each R ROWS
        sum_R_T += product(a_low_R, a_high_R, scales_R.a, x_a_low_T, x_a_high_T, both_T.xy);
        let b_R_T = product(b_low_R, b_high_R, scales_R.b, x_b_low_T, x_b_high_T, both_T.zw);
        // The last pair may be half a pair.
        sum_R_T += select(0.0, b_R_T, EVEN || c + 1u < p.chunks);
        //end
        //end
        n += LANES;
    }
    var sums: array<f32, VALUES>;
    //each R ROWS
    //each T COLUMNS
    sums[R * COLUMNS + T] = sum_R_T;
    //end
    //end
    return sums;
}

// The product of a chunk of weights with a chunk of activations.
fn product(
    low: vec4<u32>,
    high: vec4<u32>,
    s: vec3<f32>,
    x_low: vec4<u32>,
    x_high: vec4<u32>,
    both: vec2<u32>,
) -> f32 {
    let sums = unpack2x16float(both.y);
    var sum = 0.0;
    if (SIXTEEN) {
        sum = s.x * (f32(dot16(low, x_low)) - f32(OFFSET) * sums.x)
            + s.y * (f32(dot16(high, x_high)) - f32(OFFSET) * sums.y);
    } else {
        let all = sums.x + sums.y;
        sum = s.x * (f32(dot16(low, x_low) + dot16(high, x_high)) - f32(OFFSET) * all);
        if (MINIMUM) {
            sum += s.z * all;
        }
    }
    return bitcast<f32>(both.x) * sum;
}

// Sums of squares of a token's chunks 4i to 4i + 3, see integers.wgsl.
fn squares_of(token: u32, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(x[token * p.x_stride + 5u * ((p.chunks + 1u) / 2u) + i]);
}

// Scales of chunks i and i + 1. Only where rows have an even number of chunks do they lie in whole
// words.
fn pair_of_scales(i: u32) -> Pair {
    if (EVEN) {
        return two_scales(i);
    }
    return Pair(scales(i), scales(i + 1u));
}
