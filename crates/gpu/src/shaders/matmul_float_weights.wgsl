// Half a chunk of weights, 16 of them, of a matrix of floats: see matmul_weights.wgsl.

struct Raw {
    low: array<vec4<f32>, 2>,
    high: array<vec4<f32>, 2>,
}

fn fetch(row: u32, c: u32, half: u32) -> Raw {
    let n = c * 4u + half * 2u;
    return Raw(eight(row, n), eight(row, n + 1u));
}

fn decode(raw: Raw, half: u32) -> array<vec4<f32>, 4> {
    return array(raw.low[0], raw.low[1], raw.high[0], raw.high[1]);
}
