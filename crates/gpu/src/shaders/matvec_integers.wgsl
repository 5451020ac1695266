// Activations of a product, as integers: see integers.wgsl.

@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
