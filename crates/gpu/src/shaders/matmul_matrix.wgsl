// A matrix of weights. Its parameters are `p`: immediates, or constants where tokens are few.

@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

fn word(at: u32) -> u32 {
    return w[at >> 2u][at & 3u];
}

fn half_word(plane: u32, i: u32) -> u32 {
    return (word(plane + (i >> 1u)) >> ((i & 1u) * 16u)) & 0xffffu;
}

fn bias(row: u32) -> f32 {
    if (p.bias_at == 0u) {
        return 0.0;
    }
    return bitcast<f32>(word(p.bias_at + row));
}
