// A product with one matrix, of COLUMNS tokens for each layer of the grid.

struct Place {
    row: u32,   // added to rows of weights
    x: u32,     // the first row of activations
    y: u32,     // the first row of results
    tokens: u32,
    valid: bool,
}

fn place(z: u32) -> Place {
    return Place(0u, z * COLUMNS, z * COLUMNS, p.tokens - z * COLUMNS, true);
}
