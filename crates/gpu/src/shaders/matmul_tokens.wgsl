// A product of one matrix with all tokens.

struct Tile {
    first: u32,   // the tokens from here
    last: u32,    // to here, exclusive
    row: u32,     // added to rows of weights
}

fn tile_of(n: u32) -> Tile {
    return Tile(n * TILE, min((n + 1u) * TILE, p.tokens), 0u);
}

fn x_row(token: u32) -> u32 {
    return token;
}

fn y_row(token: u32) -> u32 {
    return token;
}
