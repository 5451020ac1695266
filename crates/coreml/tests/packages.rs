//! Packages written, read back, printed, damaged.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use baton_coreml::interpret::{Interpreter, Precision, Tensor, Values};
use baton_coreml::mil::{
    BlobRef, Data, DataType, FunctionBuilder, Program, TensorType, Type, Value,
};
use baton_coreml::passes::{Draft, Options, PASSES};
use baton_coreml::report::Report;
use baton_coreml::testing::example;
use baton_coreml::{Blobs, Error, Model, Package, PackageWriter, in_memory};
use baton_cpu::{Isa, Pool};
use baton_graph::testing::Random;

const F16: DataType = DataType::Float16;

fn write_example(path: &Path) -> Model {
    let mut writer = PackageWriter::create(path).unwrap();
    let model = example(&mut writer.weights).unwrap();
    writer.finish(&model).unwrap();
    model
}

fn files(package: &Path) -> Vec<Vec<u8>> {
    ["Manifest.json", "Data/com.apple.CoreML/model.mlmodel"]
        .into_iter()
        .chain(["Data/com.apple.CoreML/weights/weight.bin"])
        .map(|name| std::fs::read(package.join(name)).unwrap())
        .collect()
}

#[test]
fn a_package_reads_back_as_it_was_written_and_the_same_model_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a.mlpackage", "b.mlpackage"].map(|name| folder.path().join(name));
    let model = write_example(&a);
    write_example(&b);
    assert_eq!(files(&a), files(&b));
    let package = Package::open(&a).unwrap();
    assert_eq!(package.model, model);
    let blobs = package.model.program.blobs();
    assert_eq!(blobs.len(), 4, "two operands in each of two functions");
    for (blob, ty) in blobs {
        assert!(!package.weight(blob, ty.tensor().unwrap()).unwrap().is_empty());
    }
    assert_eq!(package.model.to_bytes(), files(&a)[1]);
    // What is there is not written over, and no half of a package is left behind.
    assert!(matches!(PackageWriter::create(&a), Err(Error::Io { .. })));
    let mut broken = model.clone();
    broken.program.functions.get_mut("decode").unwrap().body.outputs.push("nothing".into());
    let path = folder.path().join("c.mlpackage");
    let error = PackageWriter::create(&path).unwrap().finish(&broken).unwrap_err();
    assert!(error.to_string().contains("not computed"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_package_without_weights_has_no_weight_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain.mlpackage");
    let mut b = FunctionBuilder::new();
    let x = b.input("x", TensorType::new(F16, &[2, 3]));
    let y = b.op("relu", "y", &[("x", (&x).into())]).unwrap();
    let functions = [("main".to_owned(), b.finish(&[y]))];
    let program = Program { functions: functions.into(), ..Program::default() };
    let mut model = Model::new(program, None).unwrap();
    model.metadata.user.insert("made.by".into(), "hand".into());
    PackageWriter::create(&path).unwrap().finish(&model).unwrap();
    assert!(!path.join("Data/com.apple.CoreML/weights").exists());
    assert_eq!(Package::open(&path).unwrap().model, model);
}

/// Values of every kind and type, as attributes that only say something.
fn attributes() -> std::collections::BTreeMap<String, Value> {
    use baton_coreml::mil::Elements;
    let text = Value::string("say \"hi\"\\\nthen {go} = 1");
    let floats = Elements::Floats(vec![0.1, -0.0, f32::INFINITY, f32::NAN, 1e-45]);
    let floats = Value::tensor(DataType::Float32, &[5], floats);
    let doubles = Elements::Doubles(vec![0.1, f64::NEG_INFINITY]);
    let longs = Elements::Longs(vec![i64::MIN, i64::MAX]);
    let strings = Elements::Strings(vec![String::new(), "ß, \" 😀".into()]);
    let string_type = text.ty.clone();
    let list = Data::List(vec![text.clone(), text.clone()]);
    let list = Value { ty: Type::List(Box::new(string_type.clone()), Some(2)), data: list };
    let tuple = Value {
        ty: Type::Tuple(vec![string_type.clone(), Value::int(0).ty]),
        data: Data::Tuple(vec![text.clone(), Value::int(-5)]),
    };
    let dict = Value {
        ty: Type::Dict(Box::new(string_type), Box::new(list.ty.clone())),
        data: Data::Dict(vec![(text.clone(), list.clone())]),
    };
    let blob = BlobRef { file: "@model_path/x y".into(), offset: 1 << 40 };
    [
        ("text", text),
        ("floats", floats),
        ("doubles", Value::tensor(DataType::Float64, &[2], doubles)),
        ("longs", Value::tensor(DataType::Int64, &[1, 2], longs)),
        ("strings", Value::tensor(DataType::String, &[2], strings)),
        ("bools", Value::bools(&[true, false])),
        ("bytes", Value::tensor(DataType::UInt3, &[9], Elements::Bytes(vec![0xd1, 0x58, 0x1f, 1]))),
        ("nothing", Value::ints(&[])),
        ("blob", Value::blob(F16, &[2, 2], blob)),
        ("list", list),
        ("tuple", tuple),
        ("dict", dict),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[test]
fn text_and_file_keep_values_of_every_kind() {
    let mut model = example(&mut in_memory()).unwrap();
    model.program.attributes = attributes();
    let function = model.program.functions.get_mut("prefill").unwrap();
    function.attributes = attributes();
    function.body.attributes = attributes();
    let inner = function.body.clone();
    let op = &mut function.body.ops[0];
    op.attributes.extend(attributes());
    op.blocks = vec![inner, Default::default()];
    let text = model.program.to_string();
    let parsed: Program = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    // Debug output, since a NaN is not equal to itself.
    assert_eq!(format!("{parsed:?}"), format!("{:?}", model.program));
    assert_eq!(parsed.to_string(), text);
    let read = Model::from_bytes(&model.to_bytes()).unwrap();
    assert_eq!(format!("{read:?}"), format!("{model:?}"));
}

#[test]
fn texts_that_are_no_program_name_their_line() {
    let text = example(&mut in_memory()).unwrap().program.to_string();
    let lines: Vec<&str> = text.lines().collect();
    for cut in 1..lines.len() {
        let part = lines[..cut].join("\n");
        match part.parse::<Program>() {
            Err(Error::Parse { line, .. }) => assert!(line <= cut, "line {line} of {cut}"),
            other => panic!("{cut} lines: {other:?}"),
        }
    }
    let deep = format!("program {{a = {}", "tuple<".repeat(100_000));
    assert!(matches!(deep.parse::<Program>(), Err(Error::Parse { .. })));
}

/// Runs every function whose tensors are small, with positions in the context and outside of it; how
/// many runs came to their end.
fn run(package: &Package) -> usize {
    const MOST: usize = 1 << 16;
    static POOL: LazyLock<Arc<Pool>> =
        LazyLock::new(|| Arc::new(Pool::new(1, Isa::detect()).unwrap()));
    let Ok(interpreter) = Interpreter::new(package, Precision::F32, POOL.clone()) else { return 0 };
    let small = |ty: &TensorType| ty.elements().is_some_and(|n| n <= MOST);
    let mut ran = 0;
    for (name, function) in &package.model.program.functions {
        let results = function.body.ops.iter().flat_map(|op| &op.outputs);
        let mut types = results.filter_map(|result| result.ty.tensor());
        let inputs: Vec<_> = function.tensor_inputs().collect();
        let held = function.states().chain(inputs.iter().copied());
        if !types.all(small) || !held.map(|(_, ty)| ty).all(small) {
            continue;
        }
        for position in [0, 63, 64, -1] {
            let filled = |ty: &TensorType| {
                let zeros = Tensor::zeros(ty)?;
                Some(match zeros.values() {
                    Values::Ints(v) => Tensor::ints(&ty.shape, vec![position; v.len()]),
                    _ => zeros,
                })
            };
            let given = inputs.iter().filter_map(|(name, ty)| Some((*name, filled(ty)?)));
            let given: Vec<(&str, Tensor)> = given.collect();
            let Ok(mut states) = interpreter.states(name) else { continue };
            ran += usize::from(interpreter.run(name, &given, &mut states).is_ok());
        }
    }
    ran
}

/// Opens, checks, prints, runs and rewrites whatever the bytes hold; all that matters is that it ends, and that
/// passes keep to the rules. How many runs gave results, if it can be opened.
fn survive(model: &[u8], weights: &[u8]) -> Option<usize> {
    let model = Model::from_bytes(model).ok()?;
    let blobs = Blobs::from_bytes(weights.to_vec()).ok()?;
    let text = model.program.to_string();
    // A name that is no identifier may make the text another one, which is a problem of its own.
    let _ = text.parse::<Program>();
    let package = Package::new(model, Some(blobs)).ok()?;
    let readable =
        |(blob, ty): (&BlobRef, &Type)| package.weight(blob, ty.tensor().unwrap()).is_ok();
    assert!(package.model.program.blobs().into_iter().all(readable), "checked when it was opened");
    let ran = run(&package);
    let report = Report::of(&package);
    assert!((0.0..=1.0).contains(&report.least_share()));
    let draft = Draft::new(package);
    let options = Options { min_queries: 2, query_divider: 2, head_piece: 8, chunk_bytes: 1000 };
    for pass in &PASSES {
        // What a pass makes of a sound program is sound.
        if let Err(error) = draft.clone().apply(pass, &options) {
            panic!("{}: {error}\n{}", pass.name, draft.model().program);
        }
    }
    Some(ran)
}

#[test]
fn damaged_packages_are_errors_and_never_panics() {
    let mut writer = in_memory();
    let model = example(&mut writer).unwrap().to_bytes();
    let weights = writer.finish().unwrap().into_inner();
    // There is no place 64, and from -1 to 0 there is none either.
    assert_eq!(survive(&model, &weights), Some(4 + 2));
    for n in 0..model.len() {
        assert!(survive(&model[..n], &weights).is_none(), "{n} bytes of the model");
    }
    let mut random = Random::new(7);
    let mut ran = 0;
    for _ in 0..4000 {
        let (mut model, mut weights) = (model.clone(), weights.clone());
        for _ in 0..1 + random.below(3) {
            let at = random.below(model.len());
            model[at] = random.bits() as u8;
            // The header and those of the two records.
            let at = [0, 64, 704][random.below(3)] + random.below(32);
            weights[at] ^= (random.bits() & random.bits()) as u8;
        }
        ran += survive(&model, &weights).unwrap_or(0);
    }
    assert!(ran > 0, "none was sound enough to run");
    // Pieces moved, doubled and taken out.
    for _ in 0..1000 {
        let mut model = model.clone();
        let (a, b) = (random.below(model.len()), random.below(model.len()));
        let piece: Vec<u8> = model[a.min(b)..a.max(b).min(a.min(b) + 200)].to_vec();
        let at = random.below(model.len());
        model.splice(at..at, piece);
        survive(&model, &weights);
    }
}

#[test]
fn what_fuzzing_begins_with_is_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/mlpackage");
    let mut sound = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let (model, weights) = rest.split_at(u32::from_le_bytes(*length) as usize);
        sound += usize::from(survive(model, weights).is_some());
    }
    assert!(sound > 0);
}

#[test]
fn manifests_that_lead_elsewhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.mlpackage");
    write_example(&path);
    let manifest = path.join("Manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let changes = [
        ("com.apple.CoreML/model.mlmodel", "../../secret"),
        ("com.apple.CoreML/model.mlmodel", "/etc/passwd"),
        ("com.apple.CoreML/model.mlmodel", "com.apple.CoreML/none.mlmodel"),
        ("com.apple.CoreML/model.mlmodel", ""),
        ("1.0.0", "2.0.0"),
        ("rootModelIdentifier", "root"),
        ("{", "["),
    ];
    for (from, to) in changes {
        std::fs::write(&manifest, text.replace(from, to)).unwrap();
        assert!(Package::open(&path).is_err(), "{from} -> {to}");
    }
    std::fs::write(&manifest, text).unwrap();
    Package::open(&path).unwrap();
    std::fs::remove_file(path.join("Data/com.apple.CoreML/weights/weight.bin")).unwrap();
    assert!(Package::open(&path).is_err(), "no weights");
}

#[test]
fn fields_of_later_formats_are_kept_in_the_description_and_refused_in_the_program() {
    let model = example(&mut in_memory()).unwrap();
    let bytes = model.to_bytes();
    // Field 3999 of the model: kept, at the end.
    let tag = [0xfa, 0xf9, 0x01, 0x02, b'h', b'i'];
    let extended = [&bytes[..], &tag].concat();
    let read = Model::from_bytes(&extended).unwrap();
    assert_eq!(read.to_bytes(), extended);
    // A second program would be merged; here it is read instead of the first, and has field 9.
    let program = [0xb2, 0x1f, 4, 0x08, 1, 0x48, 1];
    let error = Model::from_bytes(&[&bytes[..], &program].concat()).unwrap_err().to_string();
    assert!(error.contains("field 9 of a Program"), "{error}");
}

/// Rows of a table for one number or for five.
fn lookup() -> Model {
    let mut b = FunctionBuilder::new();
    let ids = b.input("ids", TensorType::new(DataType::Int32, &[1, 1]));
    let table: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let table = b.constant("table", Value::f16s(&[3, 2], &table));
    let args = [
        ("x", (&table).into()),
        ("indices", (&ids).into()),
        ("axis", 0.into()),
        ("batch_dims", 0.into()),
        ("validate_indices", false.into()),
    ];
    let rows = b.op("gather", "rows", &args).unwrap();
    let functions = [("main".to_owned(), b.finish(&[rows]))];
    let program = Program { functions: functions.into(), ..Program::default() };
    let mut model = Model::new(program, None).unwrap();
    model.let_vary("main", "ids", &[vec![1, 1], vec![1, 5]]).unwrap();
    model
}

#[test]
fn an_input_has_at_most_as_many_shapes_as_core_ml_allows() {
    let mut model = lookup();
    let shapes = |n: usize| (1..=n).map(|ids| vec![1, ids]).collect::<Vec<_>>();
    model.let_vary("main", "ids", &shapes(128)).unwrap();
    let bytes = model.to_bytes();
    assert_eq!(Model::from_bytes(&bytes).unwrap(), model);
    let error = model.let_vary("main", "ids", &shapes(129)).unwrap_err().to_string();
    assert!(error.contains("129 shapes, more than 128"), "{error}");
}

#[test]
fn an_input_of_several_shapes_is_one_in_the_file_and_can_be_had_in_each() {
    let model = lookup();
    let bytes = model.to_bytes();
    let read = Model::from_bytes(&bytes).unwrap();
    assert_eq!((&read, read.to_bytes()), (&model, bytes.clone()));
    let package = Package::new(read, None).unwrap();
    for (ids, shape) in [(vec![2], [1, 1, 2]), (vec![2, 0, 1, 1, 2], [1, 5, 2])] {
        let n = ids.len();
        let fixed = package.with_shape("main", "ids", &[1, n]).unwrap();
        assert!(package.model.varies() && !fixed.model.varies());
        let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
        let interpreter = Interpreter::new(&fixed, Precision::F32, pool).unwrap();
        let expected: Vec<f32> =
            ids.iter().flat_map(|&i| [2 * i, 2 * i + 1]).map(|v| v as f32).collect();
        let input = [("ids", Tensor::ints(&[1, n], ids))];
        let found = interpreter.run("main", &input, &mut Default::default()).unwrap();
        assert_eq!(found["rows"].shape(), shape);
        assert_eq!(found["rows"].as_floats().unwrap(), expected);
    }
    assert!(package.with_shape("main", "ids", &[1, 3]).is_err());
    assert!(package.with_shape("main", "table", &[1, 5]).is_err());
    // Shapes that the function cannot be had in, or that its own is not among.
    for wrong in [vec![1, 0], vec![5], vec![1, 1, 5], vec![1, usize::MAX]] {
        let mut changed = model.clone();
        assert!(changed.let_vary("main", "ids", &[vec![1, 1], wrong]).is_err());
        assert_eq!(changed, model);
    }
    assert!(lookup().let_vary("main", "ids", &[vec![1, 5]]).is_err());
    assert!(lookup().let_vary("main", "none", &[vec![1, 1]]).is_err());
    let draft = Draft::new(package);
    let error = draft.apply(&PASSES[0], &Options::default()).unwrap_err().to_string();
    assert!(error.contains("several shapes"), "{error}");
    // Without the list, which is field 21 of the array, nothing says what the unknown dimensions are.
    let at = bytes.windows(2).position(|pair| pair == [0xaa, 0x01]).unwrap();
    let mut open = bytes.clone();
    open[at] = 0xb2;
    let error = Model::from_bytes(&open).unwrap_err().to_string();
    assert!(error.contains("unknown size"), "{error}");
    // Damaged, it is an error or another model, and nothing else.
    let mut random = Random::new(3);
    for n in 0..bytes.len() {
        let _ = Model::from_bytes(&bytes[..n]);
    }
    for _ in 0..20_000 {
        let mut bytes = bytes.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] = random.bits() as u8;
        }
        let Ok(model) = Model::from_bytes(&bytes) else { continue };
        let _ = model.to_bytes();
        let _ = model.with_shape("main", "ids", &[1, 5]);
        let _ = Package::new(model, None).map(|package| run(&package));
    }
}
