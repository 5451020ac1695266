// Products of chosen experts with many tokens: choices are sorted by expert, see group.wgsl. A tile is
// a run of choices of one expert; choice n reads token n / share and has row n of the results.

struct Tile {
    first: u32,
    last: u32,
    row: u32,
}

@group(0) @binding(3) var<storage, read> groups: array<u32>;

fn tile_of(n: u32) -> Tile {
    let at = p.tiles_at + 3u * n;
    let expert = groups[at + 2u] - p.first;
    if (expert >= p.experts) {
        return Tile(0u, 0u, 0u);
    }
    return Tile(groups[at], groups[at + 1u], expert * p.rows);
}

fn x_row(i: u32) -> u32 {
    return groups[i] / p.share;
}

fn y_row(i: u32) -> u32 {
    return groups[i];
}
