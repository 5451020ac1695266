// Products with many rows of activations through cooperative matrices, half precision in, single
// precision out. They are of EDGE x EDGE x EDGE: where that is 8, `coop_mat16x16` is replaced.
//
// A workgroup of SUB_ROWS x SUB_TOKENS subgroups makes a tile of ROW_TILE outputs by TILE tokens, a
// subgroup ROWS x COLUMNS matrices of it. For each chunk of 32 inputs the weights are made floats
// and brought, with the activations, into workgroup memory, while the next ones are on their way.
//
// Lines between `//each NAME COUNT` and `//end` are repeated with NAME replaced by 0, 1, ...: arrays
// of matrices would not stay in registers.

@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

const DEPTH = 32u;
// Eight more than needed, so that rows begin in different banks.
const LINE = DEPTH + 8u;

var<workgroup> results: array<f32, SUB_ROWS * SUB_TOKENS * EDGE * EDGE>;

@compute @workgroup_size(SIZE)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    let tokens = tile_of(workgroup.y);
    // A tile may be empty.
    let chunks = select(p.chunks, 0u, tokens.last <= tokens.first);
    let last = max(tokens.last, 1u) - 1u;
    let row0 = workgroup.x * ROW_TILE;
    // A thread brings halves of chunks of weights and eighths of chunks of activations.
    let half = thread % 2u;
    let eighth = thread % 4u;
    //each U W_UNITS
    let w_line_U = thread / 2u + U * SIZE / 2u;
    let w_row_U = tokens.row + min(row0 + w_line_U, p.rows - 1u);
    var w_next_U = fetch(w_row_U, 0u, half);
    //end
    //each U X_UNITS
    let x_line_U = thread / 4u + U * SIZE / 4u;
    let x_from_U = x_row(min(tokens.first + x_line_U, last)) * p.x_stride + eighth * 2u;
    var x_next_U = x[x_from_U];
    var x_then_U = x[x_from_U + 1u];
    //end
    let rows_at = (subgroup / SUB_TOKENS) * ROWS * EDGE;
    let tokens_at = (subgroup % SUB_TOKENS) * COLUMNS * EDGE;
    //each R ROWS
    //each T COLUMNS
    var sum_R_T = coop_mat16x16<f32, C>();
    //end
    //end
    for (var c = 0u; c < chunks; c++) {
        // The last chunk has been used up.
        workgroupBarrier();
        //each U W_UNITS
        let values_U = decode(w_next_U, half);
        put_w(w_line_U * LINE + half * 16u, vec4<f16>(values_U[0]));
        put_w(w_line_U * LINE + half * 16u + 4u, vec4<f16>(values_U[1]));
        put_w(w_line_U * LINE + half * 16u + 8u, vec4<f16>(values_U[2]));
        put_w(w_line_U * LINE + half * 16u + 12u, vec4<f16>(values_U[3]));
        //end
        //each U X_UNITS
        put_x(x_line_U * LINE + eighth * 8u, x_next_U);
        put_x(x_line_U * LINE + eighth * 8u + 4u, x_then_U);
        //end
        workgroupBarrier();
        let next = min(c + 1u, p.chunks - 1u);
        //each U W_UNITS
        w_next_U = fetch(w_row_U, next, half);
        //end
        //each U X_UNITS
        x_next_U = x[x_from_U + next * 8u];
        x_then_U = x[x_from_U + next * 8u + 1u];
        //end
        //each K STEPS
        //each R ROWS
        let a_K_R = coopLoadT<coop_mat16x16<f16, A>>(
            &w_tile[((rows_at + R * EDGE) * LINE + K * EDGE) / UNIT], LINE / UNIT);
        //end
        //each T COLUMNS
        let b_K_T = coopLoad<coop_mat16x16<f16, B>>(
            &x_tile[((tokens_at + T * EDGE) * LINE + K * EDGE) / UNIT], LINE / UNIT);
        //each R ROWS
        sum_R_T = coopMultiplyAdd(a_K_R, b_K_T, sum_R_T);
        //end
        //end
        //end
    }
    // Each subgroup writes its matrices by way of its own corner of workgroup memory.
    let corner = subgroup * EDGE * EDGE;
    //each R ROWS
    //each T COLUMNS
    workgroupBarrier();
    coopStore(sum_R_T, &results[corner], EDGE);
    workgroupBarrier();
    for (var i = invocation; i < EDGE * EDGE; i += subgroup_size) {
        let row = row0 + rows_at + R * EDGE + i % EDGE;
        let token = tokens.first + tokens_at + T * EDGE + i / EDGE;
        if (row < p.rows && token < tokens.last) {
            let exponent = f32(x[x_row(token) * p.x_stride + p.chunks * 8u].x);
            let at = p.y_at + y_row(token) * p.y_stride + row;
            var result = results[corner + i] * exp2(exponent) + bias(tokens.row + row);
            if (p.add != 0u) {
                result += y[at];
            }
            y[at] = result;
        }
    }
    //end
    //end
}
