// Reads a buffer once, each lane a part of it: how fast memory is.

@group(0) @binding(0) var<storage, read> input: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var sum = vec4(0u);
    for (var i = id.x; i < LENGTH; i += LANES) {
        sum += input[i];
    }
    sums[id.x] = sum.x + sum.y + sum.z + sum.w;
}
