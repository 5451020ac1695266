// Weights of single precision, in the order of the row.

// Weights 8n to 8n + 7 of a row.
fn eight(row: u32, n: u32) -> array<vec4<f32>, 2> {
    let i = row * p.chunks * 8u + 2u * n;
    return array(bitcast<vec4<f32>>(w[i]), bitcast<vec4<f32>>(w[i + 1u]));
}
