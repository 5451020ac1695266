// Normalisation of runs of features, a workgroup for each:
//     (x - mean) / sqrt(variance + eps) * gain + bias      layer norm
//     x / sqrt(mean(x * x) + eps) * gain                   RMS norm
// to which what is in `residual` may be added. The result of whole rows may be stored as integers as
// well, for products to read. A thread keeps RUNS times four features. Grid: runs of a row, rows.

struct Params {
    // Features of a run.
    group: u32,
    // Whether the mean is taken off.
    centred: u32,
    gained: u32,
    biased: u32,
    added: u32,
    x_stride: u32,
    x_offset: u32,
    residual_stride: u32,
    residual_offset: u32,
    out_stride: u32,
    out_offset: u32,
    eps: f32,
}

// Words of a row of integers, or 0.
var<immediate> integer_words: u32;
@group(0) @binding(1) var<storage, read> x: array<f32>;
// Gain, then bias.
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read_write> integers: array<u32>;

var<workgroup> sums: array<f32, THREADS>;

// The sum over all threads.
fn total(value: f32, thread: u32) -> f32 {
    sums[thread] = value;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half {
            sums[thread] += sums[thread + half];
        }
    }
    workgroupBarrier();
    let sum = sums[0];
    workgroupBarrier();
    return sum;
}

// Four numbers from `at` on, of which those before `left` count; zero for the others.
fn four_of(at: u32, left: u32) -> vec4<f32> {
    let last = max(left, 1u) - 1u;
    let i = at + min(vec4(0u, 1u, 2u, 3u), vec4(last));
    return select(vec4(0.0), vec4(x[i.x], x[i.y], x[i.z], x[i.w]), vec4(0u, 1u, 2u, 3u) < vec4(left));
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let n = params.group;
    let row = id.y;
    let run = id.x * n;
    let source = row * params.x_stride + params.x_offset + run;
    let each = vec4(0u, 1u, 2u, 3u);
    var sum = 0.0;
//each R RUNS
    let first_R = 4u * (R * THREADS + thread);
    let left_R = n - min(n, first_R);
    var v_R = four_of(min(source + first_R, source + n - 1u), left_R);
    sum += dot(v_R, vec4(1.0));
    // Under way while the others are added up.
    let at_R = min(first_R + each, vec4(n - 1u));
    var gain_R = vec4(1.0);
    if params.gained != 0u {
        gain_R = vec4(weight[at_R.x], weight[at_R.y], weight[at_R.z], weight[at_R.w]);
    }
//end
    var squares = 0.0;
    if params.centred != 0u {
        let mean = total(sum, thread) / f32(n);
//each R RUNS
        v_R = select(vec4(0.0), v_R - mean, each < vec4(left_R));
//end
    }
//each R RUNS
    squares += dot(v_R, v_R);
//end
    let factor = 1.0 / sqrt(total(squares, thread) / f32(n) + params.eps);
    let to = row * params.out_stride + params.out_offset + run;
    let other = row * params.residual_stride + params.residual_offset + run;
//each R RUNS
    v_R *= factor * gain_R;
//each J 4
    if left_R > J {
        let i = first_R + J;
        if params.biased != 0u {
            v_R[J] += weight[n + i];
        }
        if params.added != 0u {
            v_R[J] += residual[other + i];
        }
        out[to + i] = v_R[J];
    }
//end
    if integer_words != 0u {
        let words = row * integer_words;
        store_integers(v_R, first_R < n, words, n / 32u, first_R / 32u, thread);
    }
//end
}
