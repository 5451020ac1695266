// Weights of 16 bits, eight to a vec4, in the order of the row.

fn pair(bits: u32) -> vec2<f32> {
    if (BRAIN_FLOAT) {
        return vec2(bitcast<f32>(bits << 16u), bitcast<f32>(bits & 0xffff0000u));
    }
    return unpack2x16float(bits);
}

// Weights 8n to 8n + 7 of a row.
fn eight(row: u32, n: u32) -> array<vec4<f32>, 2> {
    let q = w[row * p.chunks * 4u + n];
    return array(vec4(pair(q.x), pair(q.y)), vec4(pair(q.z), pair(q.w)));
}
