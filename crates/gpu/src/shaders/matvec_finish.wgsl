// Stores outputs as floats, ROWS of them for each group of lanes.

// The row of weights that is number `r` of a group's.
fn row_of(group: u32, r: u32) -> u32 {
    return min(group * ROWS + r, p.rows - 1u);
}

fn prepare(workgroup: u32, thread: u32, at: Place) {}

fn finish(workgroup: u32, thread: u32, at: Place) {
    for (var i = thread; i < GROUPS * TURNS * VALUES; i += SIZE) {
        let group = i / VALUES;
        let value = i % VALUES;
        let row = (workgroup * GROUPS * TURNS + group) * ROWS + value / COLUMNS;
        let token = value % COLUMNS;
        if (row < p.rows && token < at.tokens && at.valid) {
            let i = p.y_at + (at.y + token) * p.y_stride + row;
            var result = factor(token) * total(group, value) + bias(at.row + row);
            if (p.add != 0u) {
                result += y[i];
            }
            y[i] = result;
        }
    }
}
