// The parameters of a product with a matrix of weights.
//
// A matrix of `rows` outputs is a run of planes in one buffer. Each row is cut into chunks of 32
// weights along its inputs; chunk c of row r has the number r * chunks + c in every plane.

struct Params {
    rows: u32,      // outputs of this part of the matrix
    chunks: u32,    // chunks of 32 weights in a row
    tokens: u32,    // rows of activations
    x_stride: u32,  // elements of x from one token to the next
    y_at: u32,      // where in a row of y this part's outputs begin
    y_stride: u32,  // elements of y from one token to the next
    add: u32,       // whether y is added to, not overwritten
    high_at: u32,   // where planes begin, in words of 32 bits
    scale_at: u32,
    super_at: u32,
    bias_at: u32,   // 0 where there is none
    inputs: u32,    // weights in a row, without those that fill up the last chunk
    first: u32,     // of a mixture: the number of this part's first expert
    experts: u32,   // of a mixture: how many this part holds
    share: u32,     // of a mixture: chosen experts that read the same token
    tiles_at: u32,  // of a mixture: where the tiles of tokens are listed
    normed: u32,    // whether activations are still to be divided by their root mean square
    eps: f32,       // added to the mean square
    words: u32,     // words of a row of the integers that are stored
    alpha: f32,     // of a gate, see activate.wgsl
    limit: f32,
}

// Scales of two chunks: for each that of its first half, that of the second, and a minimum.
struct Pair {
    a: vec3<f32>,
    b: vec3<f32>,
}
