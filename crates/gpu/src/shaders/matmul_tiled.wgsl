// Products with many rows of activations: tiles of 64 outputs by 64 tokens, for which 32 inputs at a
// time go through workgroup memory; each thread holds 4 x 4 results.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

const TILE = 64u;
const DEPTH = 32u;

// Both by input, then by output or token.
var<workgroup> w_tile: array<vec4<f32>, DEPTH * TILE / 4u>;
var<workgroup> x_tile: array<vec4<f32>, DEPTH * TILE / 4u>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let tokens = tile_of(workgroup.y);
    // A tile may be empty.
    let chunks = select(p.chunks, 0u, tokens.last <= tokens.first);
    let last = max(tokens.last, 1u) - 1u;
    let row0 = workgroup.x * TILE;
    let across = thread % 16u;
    let down = thread / 16u;
    var sums: array<vec4<f32>, 4>;
    for (var t = 0u; t < 4u; t++) {
        sums[t] = vec4(0.0);
    }
    // What this thread brings: half a chunk of weights, or 16 activations.
    let mine = (thread % 128u) / 2u;
    let half = thread % 2u;
    let row = tokens.row + min(row0 + mine, p.rows - 1u);
    let token = x_row(min(tokens.first + mine, last)) * p.x_stride;
    for (var c = 0u; c < chunks; c++) {
        if (thread < 128u) {
            let values = decode(fetch(row, c, half), half);
            for (var k = 0u; k < 16u; k++) {
                w_tile[(half * 16u + k) * 16u + mine / 4u][mine % 4u] = values[k / 4u][k % 4u];
            }
        } else {
            let first = c * DEPTH + half * 16u;
            for (var k = 0u; k < 16u; k++) {
                let value = select(0.0, x[token + min(first + k, p.inputs - 1u)], first + k < p.inputs);
                x_tile[(half * 16u + k) * 16u + mine / 4u][mine % 4u] = value;
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            let a = w_tile[k * 16u + across];
            let b = x_tile[k * 16u + down];
            sums[0] += a * b.x;
            sums[1] += a * b.y;
            sums[2] += a * b.z;
            sums[3] += a * b.w;
        }
        workgroupBarrier();
    }
    for (var t = 0u; t < 4u; t++) {
        let token = tokens.first + down * 4u + t;
        for (var r = 0u; r < 4u; r++) {
            let row = row0 + across * 4u + r;
            if (row < p.rows && token < tokens.last) {
                let i = p.y_at + y_row(token) * p.y_stride + row;
                var result = sums[t][r] + bias(tokens.row + row);
                if (p.add != 0u) {
                    result += y[i];
                }
                y[i] = result;
            }
        }
    }
}
