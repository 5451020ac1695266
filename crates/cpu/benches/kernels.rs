//! Micro-benchmarks of the kernels: `cargo bench -p baton-cpu --bench kernels [-- FILTER]`.
//!
//! Each row tells how many operations and bytes of weights, cache or activations a second it was
//! (`Gitem/s` are GOPS: a multiplication and an addition are two). All of the machine's cores work,
//! or `BATON_BENCH_THREADS`; `BATON_CPU` forces the instruction set.

use std::sync::OnceLock;

use baton_cpu::{
    Cpu, CpuOptions, Epilogue, Isa, Matrix, Pool, QuantizedRows, Rounding, matmul, pack,
};
use baton_graph::testing::{random_tokens, random_weights};
use baton_graph::{
    Activation, Attention, Batch, Executor, Gate, Graph, GraphBuilder, KvType, Limits, Op, RmsNorm,
    Rope, RopeLayout, Rows, Scope, SeqId, Unit,
};
use baton_weights::{Affine, DType, Tensor};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};

fn main() {
    divan::main();
}

fn threads() -> Option<usize> {
    std::env::var("BATON_BENCH_THREADS").ok().and_then(|n| n.parse().ok())
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let isa = Isa::from_env().expect("BATON_CPU names an instruction set of this machine");
        let threads = threads().unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        });
        Pool::new(threads, isa).expect("threads start")
    })
}

/// A format, a matrix and the tokens that meet it.
#[derive(Clone, Copy, Debug)]
struct Product(DType, usize, usize, usize);

fn products(shapes: &[(usize, usize)], tokens: &[usize]) -> Vec<Product> {
    let mlx = |bits| DType::Affine { bits, group_size: 64 };
    let types = [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0]
        .into_iter()
        .chain([DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K])
        .chain([DType::Iq4Nl, DType::Iq4Xs, DType::MxFp4, mlx(4), mlx(8)])
        .chain([DType::F16, DType::BF16, DType::F32]);
    let of_type = |dtype| {
        shapes.iter().flat_map(move |&(rows, cols)| {
            tokens.iter().map(move |&tokens| Product(dtype, rows, cols, tokens))
        })
    };
    types.flat_map(of_type).collect()
}

/// Weights in the caches: what the arithmetic reaches.
#[divan::bench(args = products(&[(2048, 2048)], &[1, 4, 512]), max_time = 0.3)]
fn product(bencher: Bencher<'_, '_>, product: Product) {
    multiply(bencher, product);
}

/// Weights in memory: what decoding a large model reaches.
#[divan::bench(args = products(&[(32_768, 2048)], &[1, 4]), max_time = 0.3)]
fn product_from_memory(bencher: Bencher<'_, '_>, product: Product) {
    multiply(bencher, product);
}

fn multiply(bencher: Bencher<'_, '_>, Product(dtype, rows, cols, tokens): Product) {
    let mut matrix = Matrix::new(tensor(dtype, rows, cols)).expect("a matrix");
    pack(pool(), vec![&mut matrix]).expect("memory for the panels");
    let x = wave(tokens * cols);
    let mut quantized = QuantizedRows::new();
    let x = quantized.quantize(pool(), &x, cols, Rounding::Coarse);
    let mut out = vec![0.0; tokens * rows];
    bencher
        .counter(ItemsCount::new(2 * rows * cols * tokens))
        .counter(BytesCount::new(matrix.stored_bytes()))
        .bench_local(|| matmul(pool(), &x, &[&matrix], &mut out, rows, Epilogue::default()));
}

/// Rounding activations for the products.
#[divan::bench(args = [1, 512], max_time = 0.3)]
fn quantize(bencher: Bencher<'_, '_>, tokens: usize) {
    let x = wave(tokens * 2048);
    let mut quantized = QuantizedRows::new();
    bencher.counter(BytesCount::of_slice(&x)).bench_local(|| {
        quantized.quantize(pool(), &x, 2048, Rounding::Coarse).rows();
    });
}

/// Activations without outliers.
fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.7).sin()).collect()
}

/// Weights whose bytes make sane numbers in whatever place of a block they are.
fn tensor(dtype: DType, rows: usize, cols: usize) -> Tensor {
    let bytes = |n: usize| -> Vec<u8> { (0..n).map(|i| 0x22 + (i * i % 11) as u8).collect() };
    let groups = rows * cols / dtype.block_len();
    let data = bytes(groups * dtype.block_bytes()).into();
    let tensor = if let DType::Affine { .. } = dtype {
        let (scales, biases) = (bytes(2 * groups).into(), bytes(2 * groups).into());
        let affine = Affine { dtype: DType::F16, scales, biases };
        Tensor::with_affine("w", dtype, &[rows, cols], data, affine)
    } else {
        Tensor::new("w", dtype, &[rows, cols], data)
    };
    tensor.expect("bytes as many as the shape has")
}

const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;

/// Cache type, tokens in the cache and new ones.
#[divan::bench(
    args = [
        (KvType::F16, 0, 512),
        (KvType::F16, 1024, 1),
        (KvType::F16, 8192, 1),
        (KvType::Q8_0, 1024, 1),
        (KvType::Q4_0, 1024, 1),
    ],
    max_time = 0.5
)]
fn attention(bencher: Bencher<'_, '_>, (kv_type, held, new): (KvType, usize, usize)) {
    let mut executor = executor(&attention_graph(), kv_type, held + new);
    let tokens = random_tokens(held + new, 64, 1);
    for part in tokens[..held].chunks(512) {
        forward(&mut *executor, part);
    }
    // Each token's query and each key or value that it sees: a product each.
    let seen: usize = (held + 1..=held + new).sum();
    let bytes = 2 * KV_HEADS * kv_type.bytes(HEAD_DIM) * (held + new);
    bencher
        .counter(ItemsCount::new(4 * seen * HEADS * HEAD_DIM))
        .counter(BytesCount::new(bytes))
        .bench_local(|| {
            executor.truncate(SeqId(0), held).expect("it holds as much");
            forward(&mut *executor, &tokens[held..]);
        });
}

/// Steps that work on each row by itself, 512 rows.
#[divan::bench(args = ["rms_norm", "rope", "silu_gate"], max_time = 0.3)]
fn row_wise(bencher: Bencher<'_, '_>, what: &str) {
    let width = HEADS * HEAD_DIM;
    let graph = graph(|b| {
        let x = table(b, 2 * width);
        let half = |b: &mut GraphBuilder, name: &str, offset| {
            b.push(name, Op::Slice { offset, len: width }, &[x]).expect("half of the features")
        };
        let (a, gate) = (half(b, "a", 0), half(b, "gate", width));
        let result = match what {
            "rms_norm" => {
                let weight = Some(b.weight("norm", &[width]));
                let norm = RmsNorm { weight, weight_offset: 0.0, eps: 1e-6, group: width };
                b.rms_norm("step", a, norm)
            }
            "rope" => {
                let inv_freq = (0..HEAD_DIM / 2).map(|i| 1e-4f32.powf(i as f32 / 64.0)).collect();
                let layout = RopeLayout::Half;
                b.rope("step", a, Rope { head_dim: HEAD_DIM, layout, inv_freq, magnitude: 1.0 })
            }
            _ => b.gated("step", gate, a, Gate::Plain(Activation::Silu)),
        };
        result.expect("a step")
    });
    let mut executor = executor(&graph, KvType::F16, 512);
    let tokens = random_tokens(512, 64, 1);
    bencher.counter(BytesCount::new(2 * 4 * 512 * width)).bench_local(|| {
        executor.free(SeqId(0));
        forward(&mut *executor, &tokens);
    });
}

fn attention_graph() -> Graph {
    graph(|b| {
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let x = table(b, q + 2 * kv);
        let state = b.kv_state(KV_HEADS, HEAD_DIM, None);
        let inputs = [("q", 0, q), ("k", q, kv), ("v", q + kv, kv)].map(|(name, offset, len)| {
            b.push(name, Op::Slice { offset, len }, &[x]).expect("some of the features")
        });
        let attention = Attention {
            scope: Scope::Past(state),
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            scale: 0.09,
            window: None,
            softcap: None,
            sinks: None,
        };
        b.attention("attention", inputs, attention).expect("attention")
    })
}

fn graph(build: impl FnOnce(&mut GraphBuilder) -> baton_graph::ValueId) -> Graph {
    let mut builder = GraphBuilder::new("kernel");
    let step = build(&mut builder);
    let last = builder.push("rows", Op::SelectRows, &[step]).expect("rows to select");
    builder.finish(last).expect("a graph")
}

/// A row of values for each of 64 tokens.
fn table(builder: &mut GraphBuilder, width: usize) -> baton_graph::ValueId {
    let weight = builder.weight("table", &[64, width]);
    builder.embedding("x", weight, 1.0).expect("an embedding")
}

fn executor(graph: &Graph, kv_type: KvType, tokens: usize) -> Box<dyn Executor> {
    let options = CpuOptions { threads: threads(), kv_type, ..CpuOptions::default() };
    let limits = Limits { context: tokens, kv_tokens: tokens, batch_tokens: 512 };
    let cpu = Cpu::new(options).expect("threads start");
    cpu.compile(graph, &random_weights(graph, 1), limits).expect("it fits")
}

fn forward(executor: &mut dyn Executor, tokens: &[u32]) {
    let batch = Batch::one(SeqId(0), tokens.to_vec(), Rows::Last);
    divan::black_box(executor.forward(&batch).expect("the batch fits"));
}
