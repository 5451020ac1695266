// Products with the matrices of chosen experts, which lie one after another: choice z reads token
// z / share and has a row of results of its own.

@group(0) @binding(CHOSEN) var<storage, read> chosen: array<u32>;

fn place(z: u32) -> Place {
    let expert = chosen[z] - p.first;
    let own = min(expert, p.experts - 1u);
    return Place(own * p.rows, z / p.share, z, 1u, expert < p.experts);
}
