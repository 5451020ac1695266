// What changes from pass to pass. The first words say how much there is and where the tables begin;
// `src/step.rs` writes them in this order. What decoding reads first lies where it is always.
@group(0) @binding(0) var<storage, read> step: array<u32>;

// Tokens of a page of the KV cache.
const PAGE: u32 = 64u;
// Words before the tables.
const HEADER: u32 = 12u;

// Where among all new tokens a row of logits comes from.
fn wanted_row(i: u32) -> u32 { return step[step[2] + i]; }
// The span that a row of logits belongs to.
fn wanted_span(i: u32) -> u32 { return step[step[3] + i]; }

// Position of a token in its sequence.
fn position_of(row: u32) -> u32 { return step[HEADER + 4u * row]; }
// Place of a token in the KV cache: page times PAGE plus its place there.
fn place_of(row: u32) -> u32 { return step[HEADER + 4u * row + 1u]; }
// Position behind the last token of its span.
fn end_of(row: u32) -> u32 { return step[HEADER + 4u * row + 2u]; }
// Its sequence's list of pages.
fn pages_of(row: u32) -> u32 { return step[HEADER + 4u * row + 3u]; }
// Page `i` of a list.
fn page_of(pages: u32, i: u32) -> u32 { return step[pages + i]; }

struct Span {
    // First row among all new tokens.
    row: u32,
    // New tokens.
    tokens: u32,
    // Position of the first of them.
    position: u32,
    // Its sequence's list of pages.
    pages: u32,
}

fn span_of(i: u32) -> Span {
    let at = step[4] + 4u * i;
    return Span(step[at], step[at + 1u], step[at + 2u], step[at + 3u]);
}

// Row of a token whose attention is split over its past: all tokens are such, or some.
fn lone(i: u32) -> u32 {
    if step[10] == 0u {
        return i;
    }
    return step[step[6] + i];
}
// Span of a tile of queries, and its first token there.
fn tile(i: u32) -> vec2<u32> {
    let at = step[7] + 2u * i;
    return vec2(step[at], step[at + 1u]);
}
// Pages that each part of a split past has, and parts.
fn part_pages() -> u32 { return step[8]; }
fn parts() -> u32 { return step[9]; }
// How many of a row's best tokens are wanted.
fn best_wanted() -> u32 { return step[11]; }
