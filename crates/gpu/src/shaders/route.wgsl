// Which experts a token gets, and their weights: the TOP_K largest of its logits, of equal ones those
// of lower number. A workgroup for each token.

struct Params {
    whole: u32,   // whether weights are shares of all experts, not of the chosen ones alone
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(2) var<storage, read_write> shares: array<f32>;

const SIZE = 64u;

var<workgroup> left: array<f32, EXPERTS>;
var<workgroup> values: array<f32, SIZE>;
var<workgroup> places: array<u32, SIZE>;
var<workgroup> best: array<f32, TOP_K>;

@compute @workgroup_size(SIZE)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let token = workgroup.x;
    for (var i = thread; i < EXPERTS; i += SIZE) {
        left[i] = logits[token * EXPERTS + i];
    }
    workgroupBarrier();
    for (var k = 0u; k < TOP_K; k++) {
        var value = -3.4e38;
        var place = EXPERTS - 1u;
        for (var i = thread; i < EXPERTS; i += SIZE) {
            if (left[i] > value) {
                value = left[i];
                place = i;
            }
        }
        values[thread] = value;
        places[thread] = place;
        for (var step = SIZE / 2u; step > 0u; step /= 2u) {
            workgroupBarrier();
            if (thread < step) {
                let other = values[thread + step];
                let at = places[thread + step];
                if (other > values[thread] || (other == values[thread] && at < places[thread])) {
                    values[thread] = other;
                    places[thread] = at;
                }
            }
        }
        workgroupBarrier();
        if (thread == 0u) {
            best[k] = values[0];
            chosen[token * TOP_K + k] = places[0];
            left[places[0]] = -3.4e38;
        }
        workgroupBarrier();
    }
    var sum = 0.0;
    if (p.whole != 0u) {
        for (var i = thread; i < EXPERTS; i += SIZE) {
            sum += exp(logits[token * EXPERTS + i] - best[0]);
        }
    } else if (thread < TOP_K) {
        for (var k = thread; k < TOP_K; k += SIZE) {
            sum += exp(best[k] - best[0]);
        }
    }
    values[thread] = sum;
    for (var step = SIZE / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (thread < step) {
            values[thread] += values[thread + step];
        }
    }
    workgroupBarrier();
    for (var k = thread; k < TOP_K; k += SIZE) {
        shares[token * TOP_K + k] = exp(best[k] - best[0]) / values[0];
    }
}
