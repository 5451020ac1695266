// Results of a product.

@group(0) @binding(2) var<storage, read_write> y: array<f32>;
