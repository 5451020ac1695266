// A scale and a minimum for each group of one or more chunks, as one word.

fn scale_and_minimum(pair: u32) -> vec3<f32> {
    if (BRAIN_FLOAT) {
        return vec3(vec2(bitcast<f32>(pair << 16u)), bitcast<f32>(pair & 0xffff0000u));
    }
    let both = unpack2x16float(pair);
    return vec3(both.xx, both.y);
}

fn scales(i: u32) -> vec3<f32> {
    return scale_and_minimum(word(p.scale_at + (i >> GROUP_SHIFT)));
}

fn two_scales(i: u32) -> Pair {
    if (GROUP_SHIFT > 0u) {
        let both = scales(i);
        return Pair(both, both);
    }
    let four = w[(p.scale_at + i) >> 2u];
    let two = select(four.xy, four.zw, (i & 2u) != 0u);
    return Pair(scale_and_minimum(two.x), scale_and_minimum(two.y));
}
