// The sum of a token's experts, each times its share.

struct Params {
    width: u32,
    y_stride: u32,
    add: u32,       // whether y is added to, not overwritten
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> shares: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = workgroup.x * 256u + thread;
    if (at >= p.width) {
        return;
    }
    let token = workgroup.y;
    var sum = 0.0;
    for (var k = 0u; k < TOP_K; k++) {
        let choice = token * TOP_K + k;
        sum += shares[choice] * x[choice * p.width + at];
    }
    let out = token * p.y_stride + at;
    if (p.add != 0u) {
        sum += y[out];
    }
    y[out] = sum;
}
