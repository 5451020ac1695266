// A scale of 8 bits, signed, for each 16 weights, times one of half precision for each 8 chunks.

fn scales(i: u32) -> vec3<f32> {
    let both = half_word(p.scale_at, i);
    let scale = unpack2x16float(half_word(p.super_at, i >> 3u)).x;
    let low = f32(extractBits(bitcast<i32>(both), 0u, 8u));
    let high = f32(extractBits(bitcast<i32>(both), 8u, 8u));
    return vec3(scale * low, scale * high, 0.0);
}

fn two_scales(i: u32) -> Pair {
    let four = vec4<f32>(unpack4xI8(word(p.scale_at + (i >> 1u))));
    let scale = unpack2x16float(half_word(p.super_at, i >> 3u)).x;
    return Pair(vec3(scale * four.xy, 0.0), vec3(scale * four.zw, 0.0));
}
