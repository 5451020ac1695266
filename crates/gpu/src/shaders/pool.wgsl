// One vector for all tokens of a span, for each row of logits. Grid: columns / 64, rows of logits.

struct Params {
    // 0: their mean, 1: the first of them, 2: the last.
    how: u32,
    cols: u32,
    x_stride: u32,
    x_offset: u32,
    out_stride: u32,
    out_offset: u32,
}

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.cols {
        return;
    }
    let span = span_of(wanted_span(id.y));
    var first = span.row;
    var end = span.row + span.tokens;
    if params.how == 1u {
        end = first + 1u;
    }
    if params.how == 2u {
        first = end - 1u;
    }
    var sum = 0.0;
    for (var row = first; row < end; row += 1u) {
        sum += x[row * params.x_stride + params.x_offset + id.x];
    }
    out[id.y * params.out_stride + params.out_offset + id.x] = sum / f32(end - first);
}
