//! A matrix's planes: where each begins, and how rows of a file come into them.

use std::ops::Range;

use baton_weights::{Affine, DType, Tensor};
use half::f16;

use super::blocks;
use super::form::{CHUNK, Codes, Form};

/// Where the planes of a matrix of some rows lie in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planes {
    pub(super) form: Form,
    pub(super) rows: usize,
    /// Chunks in a row; the last one of floats may be part-filled.
    pub(super) chunks: usize,
    /// The byte at which each plane begins: data, high bits, scales, scales of scales, biases.
    pub(super) starts: [usize; 5],
    /// Bytes of all.
    pub(super) bytes: usize,
}

impl Planes {
    pub(super) fn new(form: Form, rows: usize, inputs: usize, has_bias: bool) -> Planes {
        let chunks = inputs.div_ceil(CHUNK);
        let [data, high, scale, above] = form.row_bytes(chunks);
        let bias = if has_bias { size_of::<f32>() } else { 0 };
        let mut starts = [0; 5];
        let mut bytes = 0;
        for (start, row) in starts.iter_mut().zip([data, high, scale, above, bias]) {
            *start = bytes;
            bytes += (row * rows).next_multiple_of(16);
        }
        // Kernels take two chunks at a time, of an odd row's last pair one too many.
        bytes += if chunks.is_multiple_of(2) { 0 } else { 16 };
        Planes { form, rows, chunks, starts, bytes }
    }

    /// Rows `range` of those of some tensors taken together, as the bytes of each of the four planes
    /// of weights.
    pub(super) fn pack(&self, tensors: &[Tensor], range: Range<usize>) -> [Vec<u8>; 4] {
        let row_bytes = self.form.row_bytes(self.chunks);
        let mut planes = row_bytes.map(|bytes| vec![0; bytes * range.len()]);
        let mut first = 0;
        for tensor in tensors {
            let rows = first..first + tensor.rows();
            first = rows.end;
            for row in range.start.max(rows.start)..range.end.min(rows.end) {
                let mut out = planes.each_mut().map(Vec::as_mut_slice);
                for (plane, bytes) in out.iter_mut().zip(row_bytes) {
                    let at = (row - range.start) * bytes;
                    *plane = &mut std::mem::take(plane)[at..at + bytes];
                }
                match self.form {
                    Form::Quantized { codes, .. } => {
                        self.quantized_row(tensor, row - rows.start, codes, out);
                    }
                    form => float_row(form, tensor, row - rows.start, out[0]),
                }
            }
        }
        planes
    }

    fn quantized_row(
        &self,
        tensor: &Tensor,
        row: usize,
        kind: Codes,
        [data, high, scale, above]: [&mut [u8]; 4],
    ) {
        let bytes = &tensor.data()[row * tensor.row_bytes()..][..tensor.row_bytes()];
        let (dtype, mut codes) = (tensor.dtype(), [0; 256]);
        let mut put = |first: usize, codes: &[u8]| {
            for (c, codes) in codes.chunks_exact(CHUNK).enumerate() {
                let codes: &[u8; CHUNK] = codes.try_into().expect("whole chunks");
                put_chunk(kind, codes, first + c, self.chunks, data, high);
            }
        };
        if let (DType::Affine { bits, .. }, Some(affine)) = (dtype, tensor.affine()) {
            for c in 0..self.chunks {
                let out = &mut codes[..CHUNK];
                blocks::affine_codes(usize::from(bits), bytes, c * CHUNK, out);
                put(c, out);
            }
            pairs(affine, row, scale);
            return;
        }
        let each = dtype.block_len() / CHUNK;
        // Types without a plane write nothing there.
        let (per_scale, per_above) =
            (scale.len() * each / self.chunks, above.len() * each / self.chunks);
        for (b, block) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
            let out = &mut codes[..dtype.block_len()];
            blocks::codes(dtype, block, out);
            put(b * each, out);
            let scale = &mut scale[b * per_scale..(b + 1) * per_scale];
            let above = &mut above[b * per_above..(b + 1) * per_above];
            blocks::scales(dtype, block, scale, above);
        }
    }
}

/// Writes one chunk of integers into the planes of a row.
fn put_chunk(
    kind: Codes,
    codes: &[u8; CHUNK],
    c: usize,
    chunks: usize,
    data: &mut [u8],
    high: &mut [u8],
) {
    let (first, second) = codes.split_at(CHUNK / 2);
    if kind == Codes::Eight {
        data[16 * c..][..16].copy_from_slice(first);
        data[16 * (chunks + c)..][..16].copy_from_slice(second);
        return;
    }
    for ((byte, low), up) in data[16 * c..][..16].iter_mut().zip(first).zip(second) {
        *byte = low & 15 | up << 4;
    }
    // Bits of weight 4k + j go to byte j.
    let words = codes.as_chunks::<4>().0;
    match kind {
        Codes::Five => {
            let mut bytes = [0; 4];
            for (k, word) in words.iter().enumerate() {
                bytes.iter_mut().zip(word).for_each(|(byte, q)| *byte |= (q >> 4) << k);
            }
            high[4 * c..][..4].copy_from_slice(&bytes);
        }
        Codes::Six => {
            let mut bytes = [[0; 4]; 2];
            for (k, word) in words.iter().enumerate() {
                let bytes = bytes[k / 4].iter_mut().zip(word);
                bytes.for_each(|(byte, q)| *byte |= (q >> 4) << (2 * (k % 4)));
            }
            high[8 * c..][..8].copy_from_slice(bytes.as_flattened());
        }
        _ => {}
    }
}

/// Scale and bias of each of a row's groups, side by side.
fn pairs(affine: &Affine, row: usize, out: &mut [u8]) {
    let first = row * out.len() / 2;
    for (i, out) in out.chunks_exact_mut(4).enumerate() {
        let at = first + 2 * i;
        out[..2].copy_from_slice(&affine.scales[at..at + 2]);
        out[2..].copy_from_slice(&affine.biases[at..at + 2]);
    }
}

/// One row of floats, followed by zeros.
fn float_row(form: Form, tensor: &Tensor, row: usize, out: &mut [u8]) {
    if form.rounds(tensor.dtype()) {
        let mut values = vec![0.0; tensor.cols()];
        tensor.dequantize_row(row, &mut values);
        for (value, out) in values.iter().zip(out.chunks_exact_mut(2)) {
            out.copy_from_slice(&f16::from_f32(*value).to_le_bytes());
        }
    } else {
        let len = tensor.row_bytes();
        out[..len].copy_from_slice(&tensor.data()[row * len..][..len]);
    }
}
