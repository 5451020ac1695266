use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use baton_graph::reference::Reference;
use baton_graph::testing::conformance::{self, Tolerance};
use baton_graph::testing::{Random, Tiny, random_tokens, random_weights};
use baton_graph::{Batch, Executor, Rows, Unit};

use super::*;
use crate::remote::RemoteUnit;
use crate::{RelayOptions, RelayUnit};

const LIMITS: Limits = Limits { context: 200, kv_tokens: 400, batch_tokens: 64 };
const A: SeqId = SeqId(1);

fn model(seed: u64) -> Box<dyn Executor> {
    let graph = Tiny::default().graph().unwrap();
    Reference.compile(&graph, &random_weights(&graph, seed), LIMITS).unwrap()
}

/// A server that ends with the test.
struct Running {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    server: Arc<PrefillServer>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Running {
    fn start(key: &Key) -> Running {
        Running::with(model(5), key)
    }

    fn with(executor: Box<dyn Executor>, key: &Key) -> Running {
        let server = Arc::new(PrefillServer::new(executor, key.clone()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let (serving, ends) = (Arc::clone(&server), Arc::clone(&over));
        let serve = move || serving.serve(&listener, || ends.load(Ordering::SeqCst)).unwrap();
        let thread = Some(thread::spawn(serve));
        Running { address, over, server, thread }
    }

    fn end(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn remote(address: impl ToString, key: &Key) -> RemoteUnit {
    RemoteUnit { address: address.to_string(), key: key.clone() }
}

fn relay(remote: RemoteUnit) -> RelayUnit {
    let options = RelayOptions { crossover: 4, chunk: 16, pause: Duration::ZERO };
    RelayUnit { prefill: Box::new(remote), decode: Box::new(Reference), options }
}

fn compile(unit: &dyn Unit) -> Result<Box<dyn Executor>, ExecError> {
    let graph = Tiny::default().graph().unwrap();
    unit.compile(&graph, &random_weights(&graph, 5), LIMITS)
}

fn last(executor: &mut dyn Executor, seq: SeqId, tokens: &[u32]) -> Vec<f32> {
    tokens
        .chunks(LIMITS.batch_tokens)
        .map(|chunk| executor.forward(&Batch::one(seq, chunk.to_vec(), Rows::Last)).unwrap().values)
        .last()
        .unwrap()
}

#[track_caller]
fn near(found: &[f32], tokens: &[u32]) {
    let expected = last(&mut *model(5), A, tokens);
    let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 5e-3 && found.len() == expected.len(), "off by {worst}");
}

#[test]
fn another_machine_reads_prompts_like_any_unit() {
    let key = Key::generate().unwrap();
    let running = Running::start(&key);
    let unit = relay(remote(running.address, &key));
    let mut here = compile(&unit).unwrap();
    let text = random_tokens(150, 97, 1);
    near(&last(&mut *here, A, &text[..60]), &text[..60]);
    assert_eq!(running.server.pool().len(), 1);
    // It goes on, forks, goes back and goes away, and the server follows.
    near(&last(&mut *here, A, &text[60..]), &text);
    here.copy(A, SeqId(2), 40).unwrap();
    here.truncate(A, 20).unwrap();
    near(&last(&mut *here, SeqId(2), &text[40..70]), &text[..70]);
    near(&last(&mut *here, A, &text[20..50]), &text[..50]);
    assert_eq!(running.server.pool().len(), 2);
    here.free(A);
    // Two clients do not see each other's sequences, of the same names.
    let mut other = compile(&unit).unwrap();
    let another = random_tokens(80, 97, 2);
    near(&last(&mut *other, SeqId(2), &another), &another);
    near(&last(&mut *here, SeqId(2), &text[70..100]), &text[..100]);
    drop((here, other));
}

#[test]
fn a_relay_to_another_machine_fails_as_it_should() {
    let key = Key::generate().unwrap();
    // Its weights are others: what is looked at is what stays as it was.
    let running = Running::start(&key);
    conformance::failures(&relay(remote(running.address, &key)), Tolerance::SAME);
}

#[test]
fn a_server_that_goes_away_in_the_middle_loses_nothing() {
    let key = Key::generate().unwrap();
    let mut running = Running::start(&key);
    let mut here = compile(&relay(remote(running.address, &key))).unwrap();
    let text = random_tokens(180, 97, 3);
    here.forward(&Batch::one(A, text[..64].to_vec(), Rows::None)).unwrap();
    running.end();
    here.forward(&Batch::one(A, text[64..128].to_vec(), Rows::None)).unwrap();
    near(&last(&mut *here, A, &text[128..]), &text);
    // And without it from the start.
    near(&last(&mut *here, SeqId(2), &text[..50]), &text[..50]);
}

#[test]
fn who_has_another_key_or_model_or_no_server_is_told_so() {
    let key = Key::generate().unwrap();
    let running = Running::start(&key);
    let error = |unit: &RemoteUnit| compile(unit).err().unwrap().to_string();
    let wrong = error(&remote(running.address, &Key::generate().unwrap()));
    assert!(wrong.contains("same key"), "{wrong}");
    let nobody = error(&remote("127.0.0.1:1", &key));
    assert!(nobody.contains("prefill-server"), "{nobody}");
    assert!(error(&remote("not an address", &key)).contains("cannot be used"));
    let mut other = baton_graph::GraphBuilder::new("other");
    other.fingerprint([2; 32]);
    let embed = other.weight("embed", &[9, 8]);
    let x = other.embedding("x", embed, 1.0).unwrap();
    let state = other.kv_state(1, 8, None);
    let attention = baton_graph::Attention {
        scope: baton_graph::Scope::Past(state),
        heads: 1,
        kv_heads: 1,
        head_dim: 8,
        scale: 1.0,
        window: None,
        softcap: None,
        sinks: None,
    };
    let mixed = other.attention("attention", [x, x, x], attention).unwrap();
    let logits = other.linear("head", mixed, embed, None).unwrap();
    let graph = other.finish(logits).unwrap();
    let unit = remote(running.address, &key);
    let refused = unit.compile(&graph, &random_weights(&graph, 1), LIMITS).err().unwrap();
    assert!(refused.to_string().contains("another model"), "{refused}");
    // All of them left nothing behind.
    near(
        &last(&mut *compile(&relay(unit)).unwrap(), A, &random_tokens(30, 97, 1)),
        &random_tokens(30, 97, 1),
    );
}

#[test]
fn hostile_clients_harm_nobody() {
    let key = Key::generate().unwrap();
    let running = Running::start(&key);
    let mut random = Random::new(7);
    for n in [0usize, 1, 2, 50, 70_000] {
        let mut stream = TcpStream::connect(running.address).unwrap();
        let junk: Vec<u8> = (0..n).map(|_| random.bits() as u8).collect();
        // It may hang up before all is said.
        let _ = stream.write_all(&junk);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0; 64]);
    }
    let fingerprint = *Tiny::default().graph().unwrap().fingerprint();
    let hello = Request::Hello { version: VERSION, fingerprint, context: 200 };
    let greeted = || {
        let stream = TcpStream::connect(running.address).unwrap();
        let mut channel = Channel::connect(stream, &key, PATIENCE).unwrap();
        channel.send(&hello.encode()).unwrap();
        assert!(matches!(
            Reply::decode(&channel.receive(HEAD).unwrap()),
            Some(Reply::Ready { .. })
        ));
        channel
    };
    // Those who know the key, too.
    for message in [&[][..], &[9], &[1, 2, 3], &[0; 200_000]] {
        let mut channel = greeted();
        let _ = channel.send(message);
        assert!(channel.receive(HEAD).is_err(), "it is hung up on");
    }
    let mut channel = greeted();
    let most = u32::MAX;
    let block = |tokens: usize| {
        let graph = Tiny::default().graph().unwrap();
        KvBlock::zeros(&graph, tokens).unwrap().to_bytes()
    };
    let requests = [
        Request::Forward { seq: 1, at: 0, tokens: vec![] },
        Request::Forward { seq: 1, at: 0, tokens: vec![most] },
        Request::Forward { seq: 1, at: 7, tokens: vec![1] },
        Request::Forward { seq: 1, at: 0, tokens: vec![1; 65] },
        Request::Export { seq: 1, start: 0, end: most },
        Request::Export { seq: most, start: 5, end: 1 },
        Request::Import { seq: 1, at: 0, block: vec![1, 2, 3] },
        Request::Import { seq: 1, at: most, block: block(1) },
        Request::Truncate { seq: 1, len: most },
        hello.clone(),
    ];
    for request in requests {
        channel.send(&request.encode()).unwrap();
        let reply = Reply::decode(&channel.receive(1 << 20).unwrap()).unwrap();
        assert!(matches!(reply, Reply::Failed { held: 0, .. }), "{request:?}: {reply:?}");
    }
    // More sequences than anybody needs, and more tokens than there is room for.
    for seq in 0..1100 {
        channel.send(&Request::Forward { seq, at: 0, tokens: vec![1] }.encode()).unwrap();
        channel.receive(HEAD).unwrap();
    }
    assert!(running.server.pool().len() <= 400);
    drop(channel);
    let text = random_tokens(40, 97, 4);
    let mut here = compile(&relay(remote(running.address, &key))).unwrap();
    near(&last(&mut *here, A, &text), &text);
}

mod clients;
mod servers;
