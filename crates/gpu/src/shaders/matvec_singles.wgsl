// Activations of any number and stride.

@group(0) @binding(1) var<storage, read> x: array<f32>;

// Activations 4n to 4n + 3 of a token. Those behind its end meet weights that are zero, but must be
// finite.
fn four(token: u32, n: u32) -> vec4<f32> {
    let at = 4u * n + vec4(0u, 1u, 2u, 3u);
    let i = token * p.x_stride + min(at, vec4(p.inputs - 1u));
    return vec4(x[i.x], x[i.y], x[i.z], x[i.w]);
}
