// A power of two for each chunk, 2^(e - 128): half of what the byte e stands for, since codes are
// doubled.

fn power(e: u32) -> vec3<f32> {
    let scale = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u));
    return vec3(scale, scale, 0.0);
}

fn scales(i: u32) -> vec3<f32> {
    return power((word(p.scale_at + (i >> 2u)) >> ((i & 3u) * 8u)) & 255u);
}

fn two_scales(i: u32) -> Pair {
    let two = half_word(p.scale_at, i >> 1u);
    return Pair(power(two & 255u), power(two >> 8u));
}
