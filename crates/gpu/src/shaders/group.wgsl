// Sorts choices by expert, and cuts those of each expert into tiles: first and last place among the
// sorted ones, and the expert. Tiles that are left over get an expert that does not exist. One
// workgroup.

struct Params {
    choices: u32,
    tile: u32,       // choices of a tile
    tiles_at: u32,
    tiles: u32,      // room for this many
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> chosen: array<u32>;
@group(0) @binding(1) var<storage, read_write> groups: array<u32>;

const SIZE = 256u;

var<workgroup> places: array<atomic<u32>, EXPERTS>;
var<workgroup> counts: array<u32, EXPERTS>;
var<workgroup> used: u32;

@compute @workgroup_size(SIZE)
fn main(@builtin(local_invocation_index) thread: u32) {
    for (var e = thread; e < EXPERTS; e += SIZE) {
        atomicStore(&places[e], 0u);
    }
    workgroupBarrier();
    for (var i = thread; i < p.choices; i += SIZE) {
        atomicAdd(&places[min(chosen[i], EXPERTS - 1u)], 1u);
    }
    workgroupBarrier();
    for (var e = thread; e < EXPERTS; e += SIZE) {
        counts[e] = atomicLoad(&places[e]);
    }
    workgroupBarrier();
    for (var e = thread; e < EXPERTS; e += SIZE) {
        var start = 0u;
        var tile = 0u;
        for (var before = 0u; before < e; before++) {
            start += counts[before];
            tile += (counts[before] + p.tile - 1u) / p.tile;
        }
        atomicStore(&places[e], start);
        for (var first = 0u; first < counts[e]; first += p.tile) {
            let at = p.tiles_at + 3u * tile;
            groups[at] = start + first;
            groups[at + 1u] = start + min(first + p.tile, counts[e]);
            groups[at + 2u] = e;
            tile++;
        }
        if (e == EXPERTS - 1u) {
            used = tile;
        }
    }
    workgroupBarrier();
    for (var tile = used + thread; tile < p.tiles; tile += SIZE) {
        groups[p.tiles_at + 3u * tile + 2u] = 0xffffffffu;
    }
    for (var i = thread; i < p.choices; i += SIZE) {
        groups[atomicAdd(&places[min(chosen[i], EXPERTS - 1u)], 1u)] = i;
    }
}
