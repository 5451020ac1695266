// Gates of chosen experts: f(gate) * up, where a row holds gate and up side by side; a thread for
// four. The result may be stored as integers as well. Grid: columns / 1024, rows.

struct Params {
    width: u32,
    rows: u32,
    kind: u32,      // of activate.wgsl
    alpha: f32,
    limit: f32,
    // Words of a row of integers, or 0.
    integers: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> integers: array<u32>;

const THREADS = 256u;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = 4u * (workgroup.x * THREADS + thread);
    // Grids are not higher than this.
    for (var row = workgroup.y; row < p.rows; row += 65535u) {
        var four = vec4(0.0);
        for (var j = 0u; j < 4u; j++) {
            let at = first + j;
            if (at < p.width) {
                let gate = x[2u * row * p.width + at];
                let up = x[(2u * row + 1u) * p.width + at];
                four[j] = gated(p.kind, p.alpha, p.limit, gate, up);
                y[row * p.width + at] = four[j];
            }
        }
        if (p.integers != 0u) {
            let base = row * p.integers;
            store_integers(four, first < p.width, base, p.width / 32u, first / 32u, thread);
        }
    }
}
