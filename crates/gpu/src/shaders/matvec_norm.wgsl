// A workgroup has 32 neighbouring outputs, which are a chunk of the next product's input but for an
// RMS norm between: outputs, times the norm's gain, are stored as the integers that product reads, see
// integers.wgsl. It divides by the root mean square itself, of which it finds the chunk's sum of squares.
// The outputs are stored as floats as well.

@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> integers: array<u32>;
// One for each output.
@group(0) @binding(4) var<storage, read> gains: array<f32>;

const THREADS: u32 = SIZE;

// What is added to the first output that a thread finishes, and the gains of the four that it stores:
// under way while weights are multiplied.
var<private> added: f32;
var<private> gain: vec4<f32>;
var<workgroup> finished: array<f32, 32u * COLUMNS>;
var<workgroup> chunk_squares: array<f32, SIZE>;

fn row_of(group: u32, r: u32) -> u32 {
    return group * ROWS + r;
}

// Where output `i` of the workgroup's tokens lies.
fn place_of(workgroup: u32, i: u32, at: Place) -> u32 {
    return (at.y + i / 32u) * p.y_stride + workgroup * 32u + i % 32u;
}

fn addend(workgroup: u32, i: u32, at: Place) -> f32 {
    var sum = 0.0;
    if (i / 32u < min(at.tokens, COLUMNS)) {
        sum = bias(workgroup * 32u + i % 32u);
        if (p.add != 0u) {
            sum += y[place_of(workgroup, i, at)];
        }
    }
    return sum;
}

fn prepare(workgroup: u32, thread: u32, at: Place) {
    added = addend(workgroup, thread, at);
    let row = workgroup * 32u + 4u * (thread % 8u);
    gain = vec4(gains[row], gains[row + 1u], gains[row + 2u], gains[row + 3u]);
}

fn finish(workgroup: u32, thread: u32, at: Place) {
    for (var i = thread; i < 32u * COLUMNS; i += SIZE) {
        let token = i / 32u;
        let row = i % 32u;
        if (token < at.tokens) {
            let sum = factor(token) * total(row / ROWS, (row % ROWS) * COLUMNS + token);
            let value = sum + added;
            y[place_of(workgroup, i, at)] = value;
            finished[i] = value;
        }
        added = addend(workgroup, i + SIZE, at);
    }
    workgroupBarrier();
    let token = thread / 8u;
    let valid = token < min(at.tokens, COLUMNS);
    var v = vec4(0.0);
    if (valid) {
        let i = 4u * thread;
        v = vec4(finished[i], finished[i + 1u], finished[i + 2u], finished[i + 3u]);
    }
    chunk_squares[thread] = dot(v, v);
    let chunks = p.rows / 32u;
    let base = (at.y + token) * p.words;
    store_integers(v * gain, valid, base, chunks, workgroup, thread);
    if (valid && thread % 8u == 0u) {
        var sum = 0.0;
        for (var k = 0u; k < 8u; k++) {
            sum += chunk_squares[thread + k];
        }
        let squares = base + 20u * ((chunks + 1u) / 2u);
        integers[squares + workgroup] = bitcast<u32>(sum);
        if (workgroup + 1u == chunks) {
            for (var c = chunks; c % 4u != 0u; c++) {
                integers[squares + c] = 0u;
            }
        }
    }
}
