// For each 8 chunks the scale of their scales and that of their minima, of half precision, in the
// first word; then 12 bits for each chunk, 6 of scale and 6 of minimum: those of chunks 2n and 2n + 1
// in the lower 24 bits of word n + 1, those of the last two in the tops of these words.

// The 24 bits of the pair of chunks that i belongs to.
fn packed(group: vec4<u32>, i: u32) -> u32 {
    let at = i & 7u;
    let low = select(select(group.y, group.z, at >= 2u), group.w, at >= 4u);
    let top = (group.y >> 24u) | ((group.z >> 24u) << 8u) | ((group.w >> 24u) << 16u);
    return select(low, top, at >= 6u);
}

// A small integer as a float, with no conversion: an f32 of 2^23 and more has no fraction.
fn small(n: u32) -> f32 {
    return bitcast<f32>((n & 63u) | 0x4b000000u) - 8388608.0;
}

fn scales(i: u32) -> vec3<f32> {
    let group = w[(p.super_at >> 2u) + (i >> 3u)];
    let bits = packed(group, i) >> ((i & 1u) * 12u);
    let both = unpack2x16float(group.x);
    return vec3(vec2(both.x * small(bits)), -both.y * small(bits >> 6u));
}

fn two_scales(i: u32) -> Pair {
    let group = w[(p.super_at >> 2u) + (i >> 3u)];
    let bits = packed(group, i);
    let both = unpack2x16float(group.x);
    return Pair(
        vec3(vec2(both.x * small(bits)), -both.y * small(bits >> 6u)),
        vec3(vec2(both.x * small(bits >> 12u)), -both.y * small(bits >> 18u)),
    );
}
