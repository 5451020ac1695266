// What the kernels of attention share. HEAD_DIM are the features of a head, CHUNKS the runs of 8 of them
// that it has in the cache; these and whether there is a window, a cap or sinks are constants, so that
// kernels are short.

struct Params {
    heads: u32,
    kv_heads: u32,
    q_stride: u32,
    q_offset: u32,
    out_stride: u32,
    out_offset: u32,
    // Positions seen to either side, the own one included, if WINDOWED.
    window: u32,
    // Workgroups that share a key-value head, each with its own query heads.
    blocks: u32,
    scale: f32,
    // If CAPPED.
    softcap: f32,
    // What heads.wgsl takes, of keys and values as they come from the projections.
    k_stride: u32,
    k_offset: u32,
    v_stride: u32,
    v_offset: u32,
    q_eps: f32,
    k_eps: f32,
    magnitude: f32,
}

// Words of a row of integers, or 0.
var<immediate> integer_words: u32;
@group(0) @binding(1) var<storage, read> queries: array<f32>;

// Less than any score, and no infinity: differences with it are numbers.
const LOWEST: f32 = -3.0e38;

// First position that is seen from `position` in a sequence that ends at `end`, and the one behind the
// last.
fn visible(position: u32, end: u32) -> vec2<u32> {
    var first = 0u;
    var last = select(position + 1u, end, BOTH_WAYS);
    if WINDOWED {
        first = max(position + 1u, params.window) - params.window;
        last = min(last, position + min(params.window, end));
    }
    return vec2(first, last);
}

fn score_of(product: f32) -> f32 { return capped(product * params.scale); }

fn capped(score: f32) -> f32 {
    if !CAPPED {
        return score;
    }
    return params.softcap * tanh(clamp(score / params.softcap, -20.0, 20.0));
}

fn halves(pair: u32) -> vec2<f32> { return unpack2x16float(pair); }

fn dot8(packed: vec4<u32>, x: vec4<f32>, y: vec4<f32>) -> f32 {
    return dot(vec4(halves(packed.x), halves(packed.y)), x)
        + dot(vec4(halves(packed.z), halves(packed.w)), y);
}

// Four features of a head that begins at `from` of the queries; zeros beyond its end.
fn quad_of(source: u32, quad: u32, exists: bool) -> vec4<f32> {
    let features = 4u * quad + vec4(0u, 1u, 2u, 3u);
    let at = select(0u, source, exists) + min(features, vec4(HEAD_DIM - 1u));
    let four = vec4(queries[at.x], queries[at.y], queries[at.z], queries[at.w]);
    return select(vec4(0.0), four, vec4(exists) & (features < vec4(HEAD_DIM)));
}
