@group(0) @binding(2) var<storage, read_write> y: array<f32>;

// Stores value number `value` of those of a group of lanes.
fn finish(group: u32, value: u32, sum: f32, at: Place) {
    let row = group * ROWS + value / COLUMNS;
    let token = value % COLUMNS;
    if (row >= p.rows || token >= at.tokens || !at.valid) {
        return;
    }
    let i = p.y_at + (at.y + token) * p.y_stride + row;
    var result = sum + bias(at.row + row);
    if (p.add != 0u) {
        result += y[i];
    }
    y[i] = result;
}
