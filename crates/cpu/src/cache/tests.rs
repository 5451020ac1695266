//! Loads of small model files by way of a cache, undisturbed and otherwise.

use std::fs::{self, File};
use std::time::Duration;

use baton_weights::{DType, GgufFile, GgufWriter, Metadata, quantize_blocks};
use tempfile::TempDir;

use super::*;
use crate::isa::Isa;
use crate::matmul::{Epilogue, Matrix, matmul, pack_cached};
use crate::quant::{QuantizedRows, Rounding};

const ROWS: usize = 24;
const COLS: usize = 64;
const NO_LIMIT: u64 = u64::MAX;

/// A folder with models and a cache.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { folder: tempfile::tempdir().unwrap() }
    }

    fn cache(&self, limit: u64) -> PackedCache {
        PackedCache::new(self.folder.path().join("home/packed"), limit)
    }

    /// Writes a model of two matrices, whose values depend on `seed`.
    fn model(&self, name: &str, seed: usize) -> PathBuf {
        let path = self.folder.path().join(name);
        let parts = [("a", DType::Q8_0), ("b", DType::Q4_0)];
        let shapes = parts.map(|(name, dtype)| (name, dtype, vec![ROWS, COLS]));
        let out = File::create(&path).unwrap();
        let mut writer = GgufWriter::new(out, &Metadata::new(), &shapes).unwrap();
        for (_, dtype) in parts {
            let value = |i| ((i + 7) * (seed + 3) % 101) as f32 / 50.0 - 1.0;
            let values: Vec<f32> = (0..ROWS * COLS).map(value).collect();
            writer.tensor(&quantize_blocks(dtype, &values).unwrap()).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    /// The packed weights that are there.
    fn packed(&self) -> Vec<PathBuf> {
        self.cache(NO_LIMIT).list().unwrap().into_iter().map(|file| file.path).collect()
    }
}

/// Loads a model, multiplies with it, and says whether its weights had to be packed.
fn load_on(isa: Isa, model: &Path, cache: Option<&PackedCache>) -> (Vec<f32>, bool) {
    let pool = Pool::new(2, isa).unwrap();
    let file = GgufFile::open(model).unwrap();
    let matrix = |name| Matrix::new(file.tensor(name).unwrap()).unwrap();
    let (mut a, mut b) = (matrix("a"), matrix("b"));
    let saving = pack_cached(&pool, vec![&mut a, &mut b], cache).unwrap();
    let x: Vec<f32> = (0..COLS).map(|i| (i as f32).sin()).collect();
    let mut quantized = QuantizedRows::new();
    let x = quantized.quantize(&pool, &x, COLS, Rounding::Coarse);
    let mut out = vec![0.0; 2 * ROWS];
    matmul(&pool, &x, &[&a, &b], &mut out, 2 * ROWS, Epilogue::default());
    (out, saving.is_some())
}

fn load(model: &Path, cache: &PackedCache) -> (Vec<f32>, bool) {
    load_on(Isa::detect(), model, Some(cache))
}

#[test]
fn the_second_load_finds_what_the_first_has_packed() {
    let fixture = Fixture::new();
    let (model, cache) = (fixture.model("m", 1), fixture.cache(NO_LIMIT));
    let plain = load_on(Isa::detect(), &model, None).0;
    assert_eq!(load(&model, &cache), (plain.clone(), true));
    assert_eq!(load(&model, &cache), (plain, false));
    let listed = cache.list().unwrap();
    assert_eq!(listed[0].source.as_deref(), Some(&*model));
    assert_eq!(listed.len(), 1);
}

#[test]
fn instruction_sets_with_other_panels_have_files_of_their_own() {
    let fixture = Fixture::new();
    let (model, cache) = (fixture.model("m", 1), fixture.cache(NO_LIMIT));
    for isa in Isa::available() {
        let plain = load_on(isa, &model, None).0;
        for _ in 0..2 {
            assert_eq!(load_on(isa, &model, Some(&cache)).0, plain, "{isa}");
        }
    }
}

#[test]
fn another_model_of_the_same_shape_and_time_is_not_mistaken_for_the_first() {
    let fixture = Fixture::new();
    let cache = fixture.cache(NO_LIMIT);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let mut results = Vec::new();
    for seed in [1, 2] {
        // In the same place, too.
        let model = fixture.model("m", seed);
        File::options().write(true).open(&model).unwrap().set_modified(time).unwrap();
        results.push(load(&model, &cache));
    }
    assert!(results[0].1 && results[1].1);
    assert_ne!(results[0].0, results[1].0);
    // The first one's is of no use, but it is not known to be.
    assert_eq!(fixture.packed().len(), 2);
}

#[test]
fn what_is_damaged_cut_short_or_foreign_is_made_anew() {
    let fixture = Fixture::new();
    let (model, other) = (fixture.model("m", 1), fixture.model("n", 2));
    let cache = fixture.cache(NO_LIMIT);
    let plain = load(&model, &cache).0;
    let good = fixture.packed().remove(0);
    load(&other, &cache);
    let foreign = fixture.packed().into_iter().find(|path| *path != good).unwrap();
    let bytes = fs::read(&good).unwrap();
    let last = bytes.len() - 1;
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        bytes
    };
    let cases = [
        ("empty", Vec::new()),
        ("cut short", bytes[..last].to_vec()),
        ("without its weights", bytes[bytes.len() - 4096..].to_vec()),
        ("longer", [&bytes[..], b"x"].concat()),
        ("doubled", [&bytes[..], &bytes].concat()),
        ("another digest", flipped(last)),
        ("another magic", flipped(last - 4095)),
        ("another length", flipped(last - 4095 + 44)),
        ("of another model", fs::read(&foreign).unwrap()),
        ("no such file at all", b"GGUF".repeat(3000)),
    ];
    for (name, content) in cases {
        fs::write(&good, content).unwrap();
        assert_eq!(load(&model, &cache), (plain.clone(), true), "{name}");
        assert_eq!(load(&model, &cache), (plain.clone(), false), "{name}, afterwards");
    }
}

#[cfg(unix)]
#[test]
fn links_folders_and_files_that_others_may_write_are_not_used() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let fixture = Fixture::new();
    let (model, cache) = (fixture.model("m", 1), fixture.cache(NO_LIMIT));
    let plain = load(&model, &cache).0;
    let path = fixture.packed().remove(0);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(cache.folder())), (0o600, 0o700));
    // Even to a file that is right.
    let elsewhere = fixture.folder.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert_eq!(load(&model, &cache), (plain.clone(), true));
    assert!(elsewhere.exists() && !path.is_symlink());

    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    assert_eq!(load(&model, &cache), (plain.clone(), true));
    assert_eq!(mode(&path), 0o600);

    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    for _ in 0..2 {
        assert_eq!(load(&model, &cache), (plain.clone(), true));
    }
    assert!(cache.files(UNFINISHED).unwrap().is_empty());
}

#[test]
fn the_least_recently_used_make_room() {
    let fixture = Fixture::new();
    let models = [1, 2, 3].map(|seed| fixture.model(&seed.to_string(), seed));
    load(&models[0], &fixture.cache(NO_LIMIT));
    let size = fixture.cache(NO_LIMIT).list().unwrap()[0].bytes;
    let cache = fixture.cache(2 * size);
    load(&models[1], &cache);
    // The clock of a file system may tick slowly.
    std::thread::sleep(Duration::from_millis(20));
    assert!(!load(&models[0], &cache).1);
    assert!(load(&models[2], &cache).1);
    assert_eq!(fixture.packed().len(), 2);
    assert!(!load(&models[0], &cache).1 && !load(&models[2], &cache).1);

    let small = fixture.cache(size - 1);
    let plain = load_on(Isa::detect(), &models[1], None).0;
    for _ in 0..2 {
        assert_eq!(load(&models[1], &small), (plain.clone(), true), "larger than the limit");
    }
    assert_eq!(fixture.packed().len(), 2, "what is kept stays for what cannot be");
}

#[test]
fn loads_at_the_same_time_are_all_right_and_leave_one_file() {
    let fixture = Fixture::new();
    let (model, cache) = (fixture.model("m", 1), fixture.cache(NO_LIMIT));
    let plain = load_on(Isa::detect(), &model, None).0;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(load(&model, &cache).0, plain)));
        }
    });
    assert_eq!(fixture.packed().len(), 1);
    assert!(cache.files(UNFINISHED).unwrap().is_empty());
    assert_eq!(load(&model, &cache), (plain, false));
}

#[test]
fn sweeping_deletes_what_has_lost_its_model_and_what_ended_processes_left() {
    let fixture = Fixture::new();
    let cache = fixture.cache(NO_LIMIT);
    assert_eq!(cache.sweep().unwrap(), 0, "there is no folder yet");
    let (kept, gone) = (fixture.model("kept", 1), fixture.model("gone", 2));
    load(&kept, &cache);
    load(&gone, &cache);
    fs::remove_file(gone).unwrap();
    let left = cache.folder().join("0.1-0.part");
    fs::write(&left, [0; 100]).unwrap();
    let written = cache.folder().join("0.2-0.part");
    let writer = File::create(&written).unwrap();
    writer.lock().unwrap();
    let size = cache.list().unwrap()[0].bytes;
    assert_eq!(cache.sweep().unwrap(), size + 100);
    assert!(!left.exists() && written.exists());
    assert!(!load(&kept, &cache).1);
    assert_eq!(cache.clear().unwrap(), size);
    assert!(fixture.packed().is_empty() && written.exists());
}

#[test]
fn without_a_folder_to_write_to_models_load_all_the_same() {
    let fixture = Fixture::new();
    let (model, cache) = (fixture.model("m", 1), fixture.cache(NO_LIMIT));
    let plain = load_on(Isa::detect(), &model, None).0;
    fs::write(fixture.folder.path().join("home"), "no folder").unwrap();
    for _ in 0..2 {
        assert_eq!(load(&model, &cache), (plain.clone(), true));
    }
}

#[test]
fn what_is_given_up_leaves_nothing_behind() {
    let fixture = Fixture::new();
    let cache = fixture.cache(NO_LIMIT);
    let told = Description { key: [1; 32], len: 5000, source: None };
    assert!(cache.write(&[0; 5000], &told, &AtomicBool::new(true)).is_err());
    assert_eq!(fs::read_dir(cache.folder()).unwrap().count(), 0);
    cache.write(&[0; 5000], &told, &AtomicBool::new(false)).unwrap();
    assert_eq!(fixture.packed().len(), 1);
}

#[test]
fn weights_of_no_file_are_not_kept() {
    let fixture = Fixture::new();
    let cache = fixture.cache(NO_LIMIT);
    let pool = Pool::new(1, Isa::detect()).unwrap();
    let data = vec![0; ROWS * COLS / 32 * 34];
    let tensor = baton_weights::Tensor::new("w", DType::Q8_0, &[ROWS, COLS], data.into());
    let mut matrix = Matrix::new(tensor.unwrap()).unwrap();
    assert!(pack_cached(&pool, vec![&mut matrix], Some(&cache)).unwrap().is_none());
    assert!(!cache.folder().exists());
}
