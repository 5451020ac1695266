//! The hub's API: listings, redirects to another host, tokens, the cache, being offline.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_hub::{Error, Sha256, Token};

use crate::server::{Reply, Request, Server};
use crate::{Room, fails, gguf, holds};

type Files = BTreeMap<&'static str, Vec<u8>>;

/// A hub with the repository `o/r`, and a second server at which large files are.
struct Hub {
    hub: Server,
    cdn: Arc<Server>,
}

impl Hub {
    /// `guard` may answer in place of the hub.
    fn start(
        files: Files,
        guard: impl Fn(&Request, usize) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let files = Arc::new(files);
        let stored = Arc::clone(&files);
        let cdn = Arc::new(Server::start(move |request, _| {
            let bytes = stored.get(request.path.trim_start_matches('/'));
            bytes.map_or(Reply::status(404), |bytes| Reply::file(request, bytes, "\"cdn\""))
        }));
        let large = Arc::clone(&cdn);
        let hub = Server::start(move |request, before| {
            if let Some(reply) = guard(request, before) {
                return reply;
            }
            if request.path == "/api/models/o/r/tree/main?recursive=true" {
                return Reply::bytes(listing(files.iter()));
            }
            let name = request.path.strip_prefix("/o/r/resolve/main/").unwrap_or("none");
            match files.get(name) {
                Some(_) if name.ends_with(".json") => Reply::file(request, &files[name], "\"git\""),
                Some(_) => Reply::redirect(&large.url(&format!("/{name}"))),
                None => Reply::status(404),
            }
        });
        Self { hub, cdn }
    }

    fn room(&self) -> Room {
        let mut room = Room::new();
        room.settings.hf_endpoint = self.hub.url("");
        room
    }
}

/// As the hub lists: small files without a digest.
fn listing<'a>(files: impl Iterator<Item = (&'a &'static str, &'a Vec<u8>)>) -> String {
    let entry = |(name, bytes): (&&str, &Vec<u8>)| {
        let (size, digest) = (bytes.len(), Sha256::of(bytes));
        let lfs =
            format!(", \"lfs\": {{\"oid\": \"{digest}\", \"size\": {size}, \"pointerSize\": 130}}");
        let lfs = if name.ends_with(".json") { "" } else { lfs.as_str() };
        format!(
            "{{\"type\": \"file\", \"oid\": \"0f\", \"path\": \"{name}\", \"size\": {size}{lfs}}}"
        )
    };
    let entries: Vec<_> = files.map(entry).collect();
    let folder = "{\"type\": \"directory\", \"oid\": \"0f\", \"path\": \"q\", \"size\": 0}";
    format!("[{folder}, {}]", entries.join(", "))
}

fn quants() -> Files {
    Files::from([
        ("M-Q4_K_M-00001-of-00002.gguf", gguf(50_000, 1)),
        ("M-Q4_K_M-00002-of-00002.gguf", gguf(40_000, 2)),
        ("M-Q8_0.gguf", gguf(30_000, 3)),
        ("README.json", b"{}".to_vec()),
    ])
}

#[test]
fn shards_of_a_quantization_come_through_the_redirect_once() {
    let hub = Hub::start(quants(), |_, _| None);
    let room = hub.room();
    let (model, told) = room.get("hf.co/o/r:q4_k_m");
    holds(&model, &gguf(50_000, 1));
    let model = model.unwrap();
    assert_eq!((model.files.len(), model.size), (2, 90_000));
    assert!(std::fs::read(&model.files[1].path).unwrap() == gguf(40_000, 2));
    assert_eq!(model.files[1].path.parent(), model.path.parent());
    assert_eq!(told, ["from 0", "done 50000", "from 0", "done 40000"]);

    let requests = hub.hub.log().len() + hub.cdn.log().len();
    let again = room.get("hf:o/r:q4_k_m").0.unwrap();
    assert_eq!(again, model);
    assert_eq!(hub.hub.log().len() + hub.cdn.log().len(), requests, "no network the second time");
    assert!(room.parts().is_empty());
}

#[test]
fn a_checkpoint_comes_as_a_folder() {
    let files = Files::from([
        ("config.json", b"{\"a\": 1}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", vec![7; 9000]),
        ("pytorch_model.bin", vec![8; 9000]),
    ]);
    let hub = Hub::start(files, |_, _| None);
    let room = hub.room();
    let model = room.get("o/r").0.unwrap();
    assert!(model.path.is_dir());
    assert_eq!(std::fs::read(model.path.join("config.json")).unwrap(), b"{\"a\": 1}");
    assert_eq!(std::fs::read(model.path.join("model.safetensors")).unwrap(), vec![7; 9000]);
    assert!(!model.path.join("pytorch_model.bin").exists());
}

#[test]
fn an_embedding_model_keeps_its_folders() {
    let files = Files::from([
        ("1_Pooling/config.json", b"{\"mean\": true}".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("modules.json", b"[]".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", vec![7; 9000]),
    ]);
    let hub = Hub::start(files, |_, _| None);
    let room = hub.room();
    let model = room.get("o/r").0.unwrap();
    let pooling = std::fs::read(model.path.join("1_Pooling/config.json")).unwrap();
    assert_eq!(pooling, b"{\"mean\": true}");
    // It is found again, and all of it goes.
    let again = room.get("o/r").0.unwrap();
    assert!(again.complete && again.files.len() == 5, "{again:?}");
    let store = room.store();
    store.remove("hf:o/r").unwrap();
    let blobs = room.settings.home.join("blobs");
    assert_eq!(std::fs::read_dir(blobs).unwrap().count(), 0);
}

#[test]
fn long_listings_come_in_pages() {
    let hub = Hub::start(quants(), |request, _| {
        let files = quants();
        let first = "/api/models/o/r/tree/main?recursive=true";
        if request.path == first {
            let link = "</api/models/o/r/tree/main?recursive=true&cursor=x>; rel=\"next\"";
            return Some(Reply::bytes(listing(files.iter().take(1))).header("Link", link));
        }
        let second = request.path == format!("{first}&cursor=x");
        second.then(|| Reply::bytes(listing(files.iter().skip(1))))
    });
    let room = hub.room();
    let (model, _) = room.get("hf:o/r:Q8_0");
    holds(&model, &gguf(30_000, 3));
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let guard = |request: &Request, _| {
        let known = request.header("authorization") == Some("Bearer secret");
        (!known).then(|| Reply::status(401))
    };
    let hub = Hub::start(quants(), guard);
    let mut room = hub.room();
    let error = fails(room.get("hf:o/r:Q8_0").0);
    assert!(matches!(error, Error::Gated { status: 401, token_sent: false, .. }), "{error}");
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");

    room.settings.hf_token = Token::new("secret");
    holds(&room.get("hf:o/r:Q8_0").0, &gguf(30_000, 3));
    assert!(hub.hub.log().iter().skip(1).all(|request| request.header("authorization").is_some()));
    assert!(!hub.cdn.log().is_empty());
    for request in hub.cdn.log() {
        assert_eq!(request.header("authorization"), None);
    }

    room.settings.hf_token = Token::new("wrong");
    let error = fails(room.get("hf:o/r:Q4_K_M").0);
    assert!(matches!(error, Error::Gated { token_sent: true, .. }), "{error}");

    // The same token is not for a server that a plain address names.
    let other = Server::start(|request, _| Reply::file(request, &gguf(5000, 4), "\"e\""));
    holds(&room.get(&other.url("/x.gguf")).0, &gguf(5000, 4));
    assert_eq!(other.log()[0].header("authorization"), None);
}

#[test]
fn what_is_not_there_is_named() {
    let hub = Hub::start(quants(), |_, _| None);
    let room = hub.room();
    let error = fails(room.get("hf:o/other").0);
    assert!(matches!(&error, Error::NotFound { what, .. } if what == "o/other"), "{error}");
    let error = fails(room.get("hf:o/r@v9").0);
    assert!(error.to_string().contains("v9"), "{error}");
    let error = fails(room.get("hf:o/r:Q2_K").0);
    assert!(matches!(error, Error::NoSuchQuant { .. }), "{error}");
}

#[test]
fn hostile_answers_are_errors() {
    let tree = "/api/models/o/r/tree/main?recursive=true";
    let table: [(&str, Reply); 6] = [
        ("could leave", Reply::bytes("[{\"type\":\"file\",\"path\":\"../../x.gguf\",\"size\":4}]")),
        ("could leave", Reply::bytes("[{\"type\":\"file\",\"path\":\"/x.gguf\",\"size\":4}]")),
        (
            "could leave",
            Reply::bytes("[{\"type\":\"file\",\"path\":\"a\\u0000.gguf\",\"size\":4}]"),
        ),
        ("no proper JSON", Reply::bytes("<html>")),
        ("too many redirects", Reply::redirect(tree)),
        ("redirect to nowhere", Reply::redirect("file:///etc/passwd")),
    ];
    for (expected, reply) in table {
        let hub = Hub::start(quants(), move |_, _| Some(reply.clone()));
        let room = hub.room();
        let error = fails(room.get("hf:o/r").0).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(room.parts().is_empty());
    }
    let endless = Hub::start(quants(), |_, _| {
        let link = "</api/models/o/r/tree/main?recursive=true&cursor=x>; rel=\"next\"";
        Some(Reply::bytes("[]").header("Link", link))
    });
    let error = fails(endless.room().get("hf:o/r").0).to_string();
    assert!(error.contains("without end"), "{error}");
}

/// Puts a file into the room's Hugging Face cache.
fn cache(room: &Room, name: &str, bytes: &[u8]) {
    let repo = room.dir.path().join("hf/models--o--r");
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::create_dir_all(repo.join("snapshots/c0ffee")).unwrap();
    std::fs::write(repo.join("refs/main"), "c0ffee\n").unwrap();
    std::fs::write(repo.join("snapshots/c0ffee").join(name), bytes).unwrap();
}

#[test]
fn the_hugging_face_cache_is_used_where_it_fits() {
    let hub = Hub::start(quants(), |_, _| None);
    let room = hub.room();
    cache(&room, "M-Q8_0.gguf", &gguf(30_000, 3));
    holds(&room.get("hf:o/r:Q8_0").0, &gguf(30_000, 3));
    assert!(hub.hub.log().is_empty());
    assert!(!room.settings.home.join("blobs").exists(), "not copied");
    // It has no Q4_K_M.
    holds(&room.get("hf:o/r:Q4_K_M").0, &gguf(50_000, 1));

    // The catalog knows the digest, and the cached file is another one.
    let room = hub.room();
    cache(&room, "M-Q8_0.gguf", &gguf(30_000, 99));
    room.catalog(&gguf(30_000, 3), &["hf:o/r:M-Q8_0.gguf".into()]);
    holds(&room.get("m").0, &gguf(30_000, 3));
}

#[test]
fn offline_means_no_request() {
    let hub = Hub::start(quants(), |_, _| None);
    let mut room = hub.room();
    room.settings.offline = true;
    room.catalog(&gguf(100, 1), &[hub.hub.url("/x.gguf"), "pypi:p==1#m".into()]);
    for name in ["hf:o/r:Q8_0", "m"] {
        let error = fails(room.get(name).0).to_string();
        assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
    }
    assert!(hub.hub.log().is_empty());
}
