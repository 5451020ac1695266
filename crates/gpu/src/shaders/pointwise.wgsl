// Functions of single elements: `out = f(a)` or `out = f(a, b)`, a thread for four. The result may
// be stored as integers as well, for products to read. Grid: columns / 1024, rows.

struct Params {
    op: u32,
    // Whether rows of `a` are picked as the rows of logits say.
    gather: u32,
    cols: u32,
    a_stride: u32,
    a_offset: u32,
    b_stride: u32,
    b_offset: u32,
    out_stride: u32,
    out_offset: u32,
    // Constants of the function.
    x: f32,
    y: f32,
}

// Words of a row of integers, or 0.
var<immediate> integer_words: u32;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> integers: array<u32>;

const THREADS: u32 = 256u;

const SCALE: u32 = 0u;
const SOFTCAP: u32 = 1u;
const ADD: u32 = 2u;
const MUL: u32 = 3u;
// Activations alone, and times `b`, follow each other in the order of `activate`.
const ACTIVATION: u32 = 4u;
const GATED: u32 = 8u;

fn apply(u: f32, v: f32) -> f32 {
    if params.op >= GATED {
        return gated(params.op - GATED, params.x, params.y, u, v);
    }
    if params.op >= ACTIVATION {
        return activate(params.op - ACTIVATION, u);
    }
    switch params.op {
        case SCALE: { return u * params.x; }
        case SOFTCAP: { return params.x * tanh_of(u / params.x); }
        case ADD: { return u + v; }
        default: { return u * v; }
    }
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = id.y;
    let first = 4u * (id.x * THREADS + thread);
    var from_row = row;
    if params.gather != 0u {
        from_row = wanted_row(row);
    }
    let at = from_row * params.a_stride + params.a_offset + first;
    let other = row * params.b_stride + params.b_offset + first;
    let to = row * params.out_stride + params.out_offset + first;
    var four = vec4(0.0);
//each J 4
    if first + J < params.cols {
        four[J] = apply(a[at + J], b[other + J]);
        out[to + J] = four[J];
    }
//end
    if integer_words != 0u {
        let chunk = first / 32u;
        let chunks = params.cols / 32u;
        store_integers(four, first < params.cols, row * integer_words, chunks, chunk, thread);
    }
}
