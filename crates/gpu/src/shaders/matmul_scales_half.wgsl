// One scale of half precision for each chunk.

fn scales(i: u32) -> vec3<f32> {
    let scale = unpack2x16float(half_word(p.scale_at, i)).x;
    return vec3(scale, scale, 0.0);
}

fn two_scales(i: u32) -> Pair {
    let both = unpack2x16float(word(p.scale_at + (i >> 1u)));
    return Pair(vec3(both.xx, 0.0), vec3(both.yy, 0.0));
}
