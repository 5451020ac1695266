// Outputs are a half of gates and one of as many ups. A workgroup has 32 neighbours of both, and stores
// what the gate makes of them as a chunk of the integers that the next product reads, see integers.wgsl.

@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> integers: array<u32>;

const THREADS: u32 = SIZE;
// Joined outputs of a group of lanes.
const JOINED: u32 = ROWS / 2u;

var<workgroup> finished: array<f32, 32u * COLUMNS>;

// A group's rows are in turns of gates and of ups.
fn row_of(group: u32, r: u32) -> u32 {
    return (r % 2u) * (p.rows / 2u) + group * JOINED + r / 2u;
}

fn prepare(workgroup: u32, thread: u32, at: Place) {}

// Output `row` of the 32 gates, or with `side` 1 of the ups.
fn output(workgroup: u32, row: u32, side: u32, token: u32, at: Place) -> f32 {
    let sum = total(row / JOINED, (2u * (row % JOINED) + side) * COLUMNS + token);
    return factor(token) * sum + bias(at.row + side * (p.rows / 2u) + workgroup * 32u + row);
}

fn finish(workgroup: u32, thread: u32, at: Place) {
    for (var i = thread; i < 32u * COLUMNS; i += SIZE) {
        let gate = output(workgroup, i % 32u, 0u, i / 32u, at);
        let up = output(workgroup, i % 32u, 1u, i / 32u, at);
        finished[i] = gated(GATE, p.alpha, p.limit, gate, up);
    }
    workgroupBarrier();
    let token = thread / 8u;
    let valid = token < min(at.tokens, COLUMNS) && at.valid;
    var v = vec4(0.0);
    if (valid) {
        let i = 4u * thread;
        v = vec4(finished[i], finished[i + 1u], finished[i + 2u], finished[i + 3u]);
    }
    store_integers(v, valid, (at.y + token) * p.words, p.rows / 64u, workgroup, thread);
}
