// Attention of single tokens, as in decoding, whose queries, keys and values are prepared. See
// attention_part.wgsl.

@group(0) @binding(2) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
// Of each token, head and part: sums of values, and the largest score with the sum of weights.
@group(0) @binding(5) var<storage, read_write> sums: array<f32>;
@group(0) @binding(6) var<storage, read_write> extremes: array<vec2<f32>>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
@group(0) @binding(8) var<storage, read_write> integers: array<u32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let share = share_of(id);
    read_ahead(share, share.first_page, thread);
    let quads = 2u * CHUNKS;
    for (var i = thread; i < HEADS * quads; i += THREADS) {
        let h = i / quads;
        let source = share.row * params.q_stride + params.q_offset
            + (share.first_head + h) * HEAD_DIM;
        rows[h * QUADS + i % quads] = quad_of(source, i % quads, h < share.heads);
    }
    workgroupBarrier();
    attend(share, id, NONE, thread);
}
