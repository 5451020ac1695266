//! Models in several packages: they answer as the model in one does, and as the reference.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_coreml::interpret::{Interpreter, Precision, Tensor};
use baton_coreml::lower::{Chunks, Lowering, MilLowering, Part};
use baton_coreml::mil::{DataType, Function, FunctionBuilder, TensorType, Value, Var};
use baton_coreml::runtime::{
    self, ArrayId, Call, Interpreted, Job, Place, RowsMut, Runtime, StateId,
};
use baton_coreml::{Blobs, Error, Package, PackageExecutor, Result, in_memory};
use baton_cpu::{Isa, Pool};
use baton_graph::testing::conformance::Tolerance;
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Batch, ExecError, Executor, Graph, Limits, Rows, SeqId, reference};
use baton_weights::Weights;

const LIMITS: Limits = Limits { context: 40, kv_tokens: 40, batch_tokens: 40 };

fn lowering() -> MilLowering {
    // The smallest history that is long enough is found among several.
    let prefill = [1, 8].into_iter().flat_map(|n| [0, 16, 40].map(|h| (n, h))).collect();
    MilLowering { prefill, head_piece: 400, head_rows: 2, ..MilLowering::default() }
}

fn packages(
    lowering: &MilLowering,
    graph: &Graph,
    weights: &Weights,
    parts: &[Part],
) -> Vec<Package> {
    let package = |part: &Part| {
        let mut blobs = in_memory();
        let model = lowering.lower_part(graph, weights, part, &mut blobs).unwrap();
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        Package::new(model, Some(blobs)).unwrap()
    };
    parts.iter().map(package).collect()
}

fn executor(graph: &Graph, weights: &Weights, packages: &[Package]) -> PackageExecutor {
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let ready = |package| {
        let interpreter = Interpreter::new(package, Precision::F32, pool.clone()).unwrap();
        // Weights that are read anew for each use are the same.
        (package, interpreter.streaming())
    };
    let packages = packages.iter().map(ready).collect();
    PackageExecutor::new(graph, weights, packages, LIMITS).unwrap()
}

#[test]
fn chunks_of_layers_and_pieces_of_the_head_answer_as_the_whole_does() {
    let tiny = Tiny { layers: 5, vocab: 997, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let tokens = random_tokens(37, tiny.vocab, 6);
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    let run = |chunks| {
        let parts = lowering().parts(&graph, chunks).unwrap();
        let packages = packages(&lowering(), &graph, &weights, &parts);
        let mut executor = executor(&graph, &weights, &packages);
        let batch = Batch::one(SeqId(0), tokens.clone(), Rows::All);
        let logits = executor.forward(&batch).unwrap();
        (parts.len(), logits, executor.export_kv(SeqId(0), 3..30).unwrap())
    };
    let (one, whole, kept) = run(Chunks::Whole);
    let tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };
    tolerance.check("whole", &whole.values, &expected.values);
    assert_eq!(one, 1);
    // A layer has 61,440 bytes in half precision, and the head 127,616.
    for (chunks, n) in [
        (Chunks::Count(1), 2),
        (Chunks::Count(3), 4),
        (Chunks::Bytes(125_000), 5),
        (Chunks::Bytes(61_440), 8),
    ] {
        let (packages, logits, block) = run(chunks);
        assert_eq!(packages, n, "{chunks:?}");
        tolerance.check(&format!("{chunks:?}"), &logits.values, &expected.values);
        assert_eq!(block.keys.len(), kept.keys.len());
        let near = |(a, b): (&half::f16, &half::f16)| (a.to_f32() - b.to_f32()).abs() < 2e-2;
        assert!(block.keys.iter().zip(&kept.keys).all(near), "{chunks:?}: keys");
        assert!(block.values.iter().zip(&kept.values).all(near), "{chunks:?}: values");
    }
}

/// Runs calls when they are waited for, and nobody may use their arrays and states until then, as in Core
/// ML. Fails at the call of a number, counted from when that was set.
#[derive(Debug)]
struct Strict {
    inner: Interpreted,
    calls_left: Arc<AtomicUsize>,
    running: Vec<Running>,
    begun: usize,
}

#[derive(Debug)]
struct Running {
    job: usize,
    package: usize,
    function: String,
    inputs: Vec<(String, ArrayId)>,
    outputs: Vec<(String, ArrayId)>,
    state: Option<StateId>,
}

impl Strict {
    fn new(inner: Interpreted, calls_left: &Arc<AtomicUsize>) -> Strict {
        Strict { inner, calls_left: Arc::clone(calls_left), running: Vec::new(), begun: 0 }
    }

    fn idle(&self, place: Place<'_>) {
        for call in &self.running {
            let arrays = call.inputs.iter().chain(&call.outputs);
            let used = match place {
                Place::Array(array) => arrays.into_iter().any(|(_, used)| *used == array),
                Place::State(state, _) => call.state == Some(state),
            };
            assert!(!used, "{place:?} is in use by {}", call.function);
        }
    }
}

impl Runtime for Strict {
    fn array(&mut self, ty: &TensorType) -> Result<ArrayId> {
        self.inner.array(ty)
    }

    fn release(&mut self, array: ArrayId) {
        self.idle(Place::Array(array));
        self.inner.release(array);
    }

    fn state(&mut self, package: usize, function: &str) -> Result<StateId> {
        self.inner.state(package, function)
    }

    fn release_state(&mut self, state: StateId) {
        self.idle(Place::State(state, ""));
        self.inner.release_state(state);
    }

    fn set(&mut self, array: ArrayId, tensor: Tensor) -> Result<()> {
        self.idle(Place::Array(array));
        self.inner.set(array, tensor)
    }

    fn get(&self, array: ArrayId) -> Result<Tensor> {
        self.idle(Place::Array(array));
        self.inner.get(array)
    }

    fn set_rows(&mut self, place: Place<'_>, rows: &mut runtime::Rows<'_>) -> Result<()> {
        self.idle(place);
        self.inner.set_rows(place, rows)
    }

    fn get_rows(&self, place: Place<'_>, rows: &mut RowsMut<'_>) -> Result<()> {
        self.idle(place);
        self.inner.get_rows(place, rows)
    }

    fn start(&mut self, calls: &[Call<'_>]) -> Result<Job> {
        if self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            let (doing, problem) = ("run a function".into(), "it was told to fail".into());
            return Err(Error::CoreMl { doing, problem });
        }
        let [call] = calls else { panic!("one is better than {}", calls.len()) };
        call.inputs.iter().for_each(|(_, array)| self.idle(Place::Array(*array)));
        call.outputs.iter().for_each(|(_, array)| self.idle(Place::Array(*array)));
        call.state.iter().for_each(|state| self.idle(Place::State(*state, "")));
        self.begun += 1;
        let own = |list: &[(&str, ArrayId)]| {
            list.iter().map(|(name, array)| ((*name).to_owned(), *array)).collect()
        };
        self.running.push(Running {
            job: self.begun,
            package: call.package,
            function: call.function.to_owned(),
            inputs: own(&call.inputs),
            outputs: own(&call.outputs),
            state: call.state,
        });
        Ok(Job(self.begun))
    }

    fn wait(&mut self, job: Job) -> Result<()> {
        let at = self.running.iter().position(|running| running.job == job.0).unwrap();
        let running = self.running.remove(at);
        fn lent(list: &[(String, ArrayId)]) -> Vec<(&str, ArrayId)> {
            list.iter().map(|(name, array)| (name.as_str(), *array)).collect()
        }
        let call = Call {
            package: running.package,
            function: &running.function,
            inputs: lent(&running.inputs),
            outputs: lent(&running.outputs),
            state: running.state,
        };
        let job = self.inner.start(&[call])?;
        self.inner.wait(job)
    }
}

#[test]
fn a_call_that_fails_leaves_what_functions_have_of_other_sequences_known_for_what_it_is() {
    let tiny = Tiny { layers: 5, vocab: 97, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let lowering = MilLowering { decode: Some(40), ..lowering() };
    let parts = lowering.parts(&graph, Chunks::Count(3)).unwrap();
    let package = |part: &Part| {
        let mut blobs = in_memory();
        let model = lowering.lower_part(&graph, &weights, part, &mut blobs).unwrap();
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        Package::new(model, Some(blobs)).unwrap()
    };
    let packages: Vec<Package> = parts.iter().map(package).collect();
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let ready = |package| Interpreter::new(package, Precision::F32, pool.clone()).unwrap();
    let inner = Interpreted::new(packages.iter().map(ready).collect());
    let calls_left = Arc::new(AtomicUsize::new(usize::MAX));
    let runtime = Box::new(Strict::new(inner, &calls_left));
    let packages: Vec<&Package> = packages.iter().collect();
    // Two sequences, and states for one.
    let limits = Limits { kv_tokens: 79, ..LIMITS };
    let mut executor =
        PackageExecutor::with_runtime(&graph, &weights, &packages, runtime, limits).unwrap();
    let texts = [random_tokens(30, tiny.vocab, 6), random_tokens(30, tiny.vocab, 7)];
    let [a, b] = [SeqId(0), SeqId(1)];
    let mut add =
        |seq: SeqId, range: std::ops::Range<usize>| -> std::result::Result<_, ExecError> {
            let tokens = texts[seq.0 as usize][range].to_vec();
            Ok(executor.forward(&Batch::one(seq, tokens, Rows::Last))?.values)
        };
    let expected = texts.each_ref().map(|text| reference::logits(&graph, &weights, text).unwrap());
    let tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };
    // Prompts behind a history, and single tokens through the states; both are handed to and fro.
    let mut at = [0, 0];
    for (seq, n) in [(a, 8), (b, 8), (a, 6), (b, 6), (a, 1), (b, 1)] {
        let (own, i) = (at[seq.0 as usize], seq.0 as usize);
        // Chunk by chunk, and in the head.
        for fails in 0..4 {
            calls_left.store(fails, Ordering::Relaxed);
            let error = add(seq, own..own + n).unwrap_err();
            assert!(error.to_string().contains("told to fail"), "{error}");
            // The other one goes on as if nothing had been.
            calls_left.store(usize::MAX, Ordering::Relaxed);
            let other = 1 - i;
            if fails == 2 && at[other] > 0 {
                let (next, more) = (at[other], n.min(2));
                let found = add(SeqId(other as u32), next..next + more).unwrap();
                at[other] += more;
                let row = expected[other].row(at[other] - 1);
                tolerance.check(&format!("{other} behind a failure of {i}"), &found, row);
            }
        }
        calls_left.store(usize::MAX, Ordering::Relaxed);
        let own = at[i];
        let found = add(seq, own..own + n).unwrap();
        at[i] += n;
        tolerance.check(&format!("{i}, {} tokens", at[i]), &found, expected[i].row(at[i] - 1));
    }
}

#[test]
fn packages_that_are_not_all_of_a_model_are_refused() {
    let graph = Tiny { layers: 4, ..Tiny::default() }.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let parts = lowering().parts(&graph, Chunks::Count(2)).unwrap();
    let packages = packages(&lowering(), &graph, &weights, &parts);
    let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
    let open = |which: &[usize]| {
        let ready = |&i: &usize| {
            let made = Interpreter::new(&packages[i], Precision::F32, pool.clone()).unwrap();
            (&packages[i], made)
        };
        let packages = which.iter().map(ready).collect();
        PackageExecutor::new(&graph, &weights, packages, LIMITS).map(drop)
    };
    open(&[0, 1, 2]).unwrap();
    for missing in [&[0, 2][..], &[0, 1], &[2], &[], &[0, 1, 1, 2]] {
        assert!(open(missing).is_err(), "{missing:?}");
    }
}

#[test]
fn packages_whose_functions_are_not_what_they_are_called_are_refused() {
    type Functions = std::collections::BTreeMap<String, Function>;
    let graph = Tiny { layers: 2, ..Tiny::default() }.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let made = |lowering: &MilLowering, parts: &[Part]| packages(lowering, &graph, &weights, parts);
    let parts = lowering().parts(&graph, Chunks::Whole).unwrap();
    let honest = MilLowering { decode: Some(40), ..lowering() };
    let other = MilLowering { decode: Some(80), head_rows: 3, ..lowering() };
    let other = made(&other, &parts).remove(0).model.program.functions;
    let open = |lie: &dyn Fn(&mut Functions)| {
        let mut package = made(&honest, &parts).remove(0);
        let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
        let interpreter = Interpreter::new(&package, Precision::F32, pool).unwrap();
        lie(&mut package.model.program.functions);
        let executor =
            PackageExecutor::new(&graph, &weights, vec![(&package, interpreter)], LIMITS);
        executor.map(drop).map_err(|error| error.to_string())
    };
    let move_to = |from: &str, to: &str| {
        let (from, to) = (from.to_owned(), to.to_owned());
        move |functions: &mut Functions| {
            let function = functions[&from].clone();
            functions.insert(to.clone(), function);
        }
    };
    open(&|_| ()).unwrap();
    for (from, to, reason) in [
        ("prefill_8_h0", "prefill_1099511627776_h0", "fewer tokens"),
        ("prefill_8_h0", "prefill_1_h1099511627776", "fewer tokens"),
        ("prefill_8_h0", "prefill_1_h18446744073709551615", "fewer tokens"),
        ("prefill_8_h0", "prefill_16384_h0", "another model"),
        ("prefill_1_h0", "prefill_8_h0", "another model"),
        ("prefill_8_h16", "prefill_8_h40", "another model"),
        ("prefill_8_h40", "prefill_8_h16", "another model"),
        ("prefill_1_h0", "decode", "no state"),
        ("prefill_1_h0", "head", "another model"),
    ] {
        let error = open(&move_to(from, to)).unwrap_err();
        assert!(error.contains(reason), "{from} as {to}: {error}");
    }
    // Functions of others are right as such: each of these is whole in itself.
    for name in ["decode", "head"] {
        open(&|functions| drop(functions.insert(name.into(), other[name].clone()))).unwrap();
    }
    // Heads of which the results are fewer, or the rows too many.
    let head = |columns: usize, make: &dyn Fn(&mut FunctionBuilder, &Var) -> Var| {
        let mut b = FunctionBuilder::new();
        let ty = TensorType::new(DataType::Float16, &[1, 64, 1, columns]);
        let x = b.input("hidden", ty);
        let y = make(&mut b, &x);
        b.finish(&[y])
    };
    let narrow = head(2, &|b, x| {
        let args =
            [("x", x.into()), ("axes", Value::ints(&[3]).into()), ("keep_dims", true.into())];
        b.op("reduce_max", "logits_0", &args).unwrap()
    });
    let same =
        |b: &mut FunctionBuilder, x: &Var| b.op("identity", "y", &[("x", x.into())]).unwrap();
    let cases = [
        (narrow, "another model"),
        (head(2, &same), "another model"),
        (head(1 << 24, &same), "fewer tokens"),
    ];
    for (function, reason) in cases {
        let lie =
            |functions: &mut Functions| drop(functions.insert("head".into(), function.clone()));
        let error = open(&lie).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}
