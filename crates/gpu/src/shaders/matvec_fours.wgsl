// Activations whose number and stride are multiples of four.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

// Activations 4n to 4n + 3 of a token. Those behind its end meet weights that are zero, but must be
// finite.
fn four(token: u32, n: u32) -> vec4<f32> {
    return x[token * (p.x_stride / 4u) + min(n, p.inputs / 4u - 1u)];
}
