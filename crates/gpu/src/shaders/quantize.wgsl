// Activations as integers, where no kernel before has made them so: see integers.wgsl.

struct Params {
    chunks: u32,
    tokens: u32,
    x_stride: u32,   // floats from one token to the next
    q_stride: u32,   // words from one token to the next
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> integers: array<u32>;

const THREADS: u32 = 256u;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (workgroup.y * grid.x + workgroup.x) * 32u + thread / 8u;
    let token = i / p.chunks;
    let c = i % p.chunks;
    let valid = token < p.tokens;
    var v = vec4(0.0);
    if (valid) {
        let at = token * p.x_stride + c * 32u + 4u * (thread % 8u);
        v = vec4(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
    }
    store_integers(v, valid, token * p.q_stride, p.chunks, c, thread);
}
