// Where the rows of a product of few tokens begin.

struct Place {
    row: u32,   // added to rows of weights
    x: u32,     // the first row of activations
    y: u32,     // the first row of results
    tokens: u32,
    valid: bool,
}
