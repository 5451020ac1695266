// Activations in half precision for matmul_coop.wgsl. Each token is scaled by a power of two, so
// that no value is too large for the format and few are too small; the exponent follows the values.

struct Params {
    inputs: u32,
    chunks: u32,
    x_stride: u32,   // floats from one token to the next
    h_stride: u32,   // vec4s from one token to the next
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> h: array<vec4<f16>>;

var<workgroup> largest: array<f32, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let base = workgroup.x * p.x_stride;
    var most = 0.0;
    for (var i = thread; i < p.inputs; i += 256u) {
        most = max(most, abs(x[base + i]));
    }
    largest[thread] = most;
    for (var step = 128u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (thread < step) {
            largest[thread] = max(largest[thread], largest[thread + step]);
        }
    }
    workgroupBarrier();
    // The largest comes to lie between 1024 and 2048.
    let size = max(i32(bitcast<u32>(largest[0]) >> 23u) - 137, -100);
    let factor = bitcast<f32>(u32(127 - size) << 23u);
    let out = workgroup.x * p.h_stride;
    for (var n = thread; n < p.chunks * 8u; n += 256u) {
        let at = vec4(4u * n) + vec4(0u, 1u, 2u, 3u);
        let i = base + min(at, vec4(p.inputs - 1u));
        let v = vec4(x[i.x], x[i.y], x[i.z], x[i.w]) * factor;
        h[out + n] = vec4<f16>(select(vec4(0.0), v, at < vec4(p.inputs)));
    }
    if (thread == 0u) {
        h[out + p.chunks * 8u] = vec4(f16(size), 0.0h, 0.0h, 0.0h);
    }
}
