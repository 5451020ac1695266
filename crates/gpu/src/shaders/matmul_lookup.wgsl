// Rows of a matrix as floats, times a factor, half a chunk for each thread. Of the parameters,
// `y_at` is the row that this part of the matrix begins with, and `x_stride` holds the factor's bits.
// Grid: halves of chunks / 64, tokens.

@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let c = id.x / 2u;
    let half = id.x % 2u;
    // Below the first row this is a large number.
    let row = ids[id.y] - p.y_at;
    if (c >= p.chunks || row >= p.rows) {
        return;
    }
    let factor = bitcast<f32>(p.x_stride);
    let weights = decode(fetch(row, c, half), half);
    let at = c * 32u + half * 16u;
    //each I 4
    let four_I = weights[I] * factor;
    //each J 4
    if (at + 4u * I + J < p.inputs) {
        y[id.y * p.y_stride + at + 4u * I + J] = four_I[J];
    }
    //end
    //end
}
