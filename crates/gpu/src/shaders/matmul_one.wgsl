// A product with one matrix, of COLUMNS tokens for each layer of the grid.

fn place(z: u32) -> Place {
    return Place(0u, z * COLUMNS, z * COLUMNS, tokens - z * COLUMNS, true);
}
