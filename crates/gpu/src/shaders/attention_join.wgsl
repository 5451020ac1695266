// Joins the parts that `attention_lone.wgsl` leaves. The result may be stored as integers as well, for
// a product to read. Grid: heads, tokens.

@group(0) @binding(2) var<storage, read> sums: array<f32>;
@group(0) @binding(3) var<storage, read> extremes: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> integers: array<u32>;

// As many as there are parts at most, and enough for the widest heads with four features each.
const THREADS: u32 = 64u;

// Of each part the largest score and the sum of weights; then what to multiply it with.
var<workgroup> largest: array<f32, THREADS>;
var<workgroup> totals: array<f32, THREADS>;
var<workgroup> factors: array<f32, THREADS>;

fn part_of(part: u32, width: u32, feature: u32) -> vec4<f32> {
    let at = part * width + feature;
    return vec4(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let count = parts();
    let first = (id.y * params.heads + id.x) * count;
    var own = vec2(LOWEST, 0.0);
    if thread < count {
        own = extremes[first + thread];
    }
    largest[thread] = own.x;
    totals[thread] = own.y;
    workgroupBarrier();
    var highest = LOWEST;
    if SINKS {
        highest = sinks[id.x];
    }
    for (var p = 0u; p < count; p += 1u) {
        highest = max(highest, largest[p]);
    }
    // A part of which nothing is seen wrote no number: its sums are not to be touched.
    factors[thread] = select(0.0, exp(own.x - highest), own.y != 0.0);
    workgroupBarrier();
    var weight = 0.0;
    if SINKS {
        weight = exp(sinks[id.x] - highest);
    }
    for (var p = 0u; p < count; p += 1u) {
        weight += totals[p] * factors[p];
    }
    let width = 8u * CHUNKS;
    let row = lone(id.y);
    let to = row * params.out_stride + params.out_offset + id.x * HEAD_DIM;
    let feature = 4u * thread;
    var sum = vec4(0.0);
    if feature < HEAD_DIM {
        var p = 0u;
        for (; p + 4u <= count; p += 4u) {
//each U 4
            let part_U = part_of(first + p + U, width, feature);
//end
//each U 4
            sum += select(vec4(0.0), part_U * factors[p + U], factors[p + U] != 0.0);
//end
        }
        for (; p < count; p += 1u) {
            let part = part_of(first + p, width, feature);
            sum += select(vec4(0.0), part * factors[p], factors[p] != 0.0);
        }
        sum /= weight;
//each J 4
        if feature + J < HEAD_DIM {
            out[to + feature + J] = sum[J];
        }
//end
    }
    if integer_words != 0u {
        let chunk = (id.x * HEAD_DIM + feature) / 32u;
        let chunks = params.heads * HEAD_DIM / 32u;
        let valid = feature < HEAD_DIM;
        store_integers(sum, valid, row * integer_words, chunks, chunk, thread);
    }
}
