// Products of weights that are floats with few rows of activations.

fn products(group: u32, lane: u32, at: Place) -> array<f32, VALUES> {
    //each R ROWS
    let row_R = at.row + row_of(group, R);
    //each T COLUMNS
    var sum_R_T = 0.0;
    //end
    //end
    for (var n = lane; n < 4u * p.chunks; n += LANES) {
        //each R ROWS
        let w_R = eight(row_R, n);
        //end
        //each T COLUMNS
        let token_T = at.x + min(T, at.tokens - 1u);
        let low_T = four(token_T, 2u * n);
        let high_T = four(token_T, 2u * n + 1u);
        //each R ROWS
        sum_R_T += dot(w_R[0], low_T) + dot(w_R[1], high_T);
        //end
        //end
    }
    var sums: array<f32, VALUES>;
    //each R ROWS
    //each T COLUMNS
    sums[R * COLUMNS + T] = sum_R_T;
    //end
    //end
    return sums;
}

// A norm is only left to products that read integers.
fn squares_of(token: u32, i: u32) -> vec4<f32> {
    return vec4(0.0);
}
