//! Too many clients, and clients with which something goes wrong.

use super::*;

#[test]
fn who_has_not_shown_the_key_keeps_nobody_out() {
    let key = Key::generate().unwrap();
    let running = Running::start(&key);
    let strangers: Vec<_> =
        (0..2 * MOST_CLIENTS).map(|_| TcpStream::connect(running.address).unwrap()).collect();
    // All places are free, and so they are while others come and go.
    let unit = remote(running.address, &key);
    let clients: Vec<_> = (0..MOST_CLIENTS).map(|_| compile(&unit).unwrap()).collect();
    drop((strangers, clients));
}

/// Panics at the last token of the vocabulary.
struct Fragile(Box<dyn Executor>);

const PANICS_AT: u32 = 96;

impl Executor for Fragile {
    fn forward(&mut self, batch: &Batch) -> Result<baton_graph::Logits, ExecError> {
        let all = || batch.spans.iter().flat_map(|span| &span.tokens);
        assert!(all().all(|&token| token != PANICS_AT), "a fault that a test wants");
        self.0.forward(batch)
    }
    fn limits(&self) -> &Limits {
        self.0.limits()
    }
    fn len(&self, seq: SeqId) -> usize {
        self.0.len(seq)
    }
    fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        self.0.truncate(seq, len)
    }
    fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        self.0.copy(from, to, len)
    }
    fn free(&mut self, seq: SeqId) {
        self.0.free(seq);
    }
    fn export_kv(&self, seq: SeqId, range: std::ops::Range<usize>) -> Result<KvBlock, ExecError> {
        self.0.export_kv(seq, range)
    }
    fn import_kv(&mut self, seq: SeqId, at: usize, block: &KvBlock) -> Result<(), ExecError> {
        self.0.import_kv(seq, at, block)
    }
    fn usage(&self) -> baton_graph::Usage {
        self.0.usage()
    }
}

#[test]
fn a_fault_with_one_client_costs_no_place_and_no_other_client() {
    let key = Key::generate().unwrap();
    let mut running = Running::with(Box::new(Fragile(model(5))), &key);
    let unit = remote(running.address, &key);
    let text = random_tokens(30, PANICS_AT as usize, 3);
    let mut calm = compile(&unit).unwrap();
    calm.forward(&Batch::one(A, text.clone(), Rows::None)).unwrap();
    for _ in 0..=MOST_CLIENTS {
        let mut client = compile(&unit).unwrap();
        let fault = client.forward(&Batch::one(A, vec![PANICS_AT], Rows::None));
        assert!(matches!(fault, Err(ExecError::Lost(_))), "{fault:?}");
    }
    assert_eq!(calm.export_kv(A, 0..30).unwrap().tokens, 30);
    running.end();
}

#[test]
fn too_many_clients_are_turned_away() {
    let key = Key::generate().unwrap();
    let running = Running::start(&key);
    let unit = remote(running.address, &key);
    let clients: Vec<_> = (0..MOST_CLIENTS).map(|_| compile(&unit).unwrap()).collect();
    let told = compile(&unit).err().unwrap().to_string();
    assert!(told.contains("16 clients already"), "{told}");
    drop(clients);
    let again = (0..100).find_map(|_| {
        thread::sleep(WATCH);
        compile(&unit).ok()
    });
    assert!(again.is_some());
}

#[test]
fn strangers_do_not_stay() {
    let key = Key::generate().unwrap();
    let running = Running::start(&key);
    let mut stranger = TcpStream::connect(running.address).unwrap();
    // One byte now and then of a message that never ends.
    let ended = (0..200).any(|_| {
        thread::sleep(WATCH);
        stranger.write_all(&[1]).is_err()
    });
    assert!(ended);
    let left = (0..100).any(|_| {
        thread::sleep(WATCH);
        running.server.door.len() == 0
    });
    assert!(left);
}
