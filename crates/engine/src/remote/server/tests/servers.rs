//! Servers that are hostile, flaky or silent.

use std::time::Instant;

use super::*;

/// What a hostile server answers to requests behind the greeting.
fn evil(key: &Key, mut answer: impl FnMut(Request) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, key) = (listener.local_addr().unwrap(), key.clone());
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let Ok(mut channel) = Channel::accept(stream, &key, PATIENCE) else { continue };
            let _ = channel.receive(HEAD);
            let ready = Reply::Ready { context: 200, kv_tokens: 400, batch_tokens: 64 };
            let _ = channel.send(&ready.encode());
            while let Ok(bytes) = channel.receive(1 << 20) {
                let Some(request) = Request::decode(&bytes) else { break };
                if channel.send(&answer(request)).is_err() {
                    break;
                }
            }
        }
    });
    address
}

#[test]
fn hostile_servers_cost_time_and_nothing_else() {
    let key = Key::generate().unwrap();
    let graph = Tiny::default().graph().unwrap();
    let foreign = KvBlock { fingerprint: [9; 32], ..KvBlock::zeros(&graph, 16).unwrap() };
    let short = KvBlock::zeros(&graph, 3).unwrap();
    let blocks = [foreign.to_bytes(), short.to_bytes(), vec![1; 10], Vec::new()];
    let honest_lengths = |request: &Request, counter: &AtomicUsize| match request {
        Request::Forward { at, tokens, .. } => {
            counter.fetch_add(1, Ordering::SeqCst);
            Some(Reply::Done { held: at + tokens.len() as u32 })
        }
        Request::Export { .. } => None,
        _ => Some(Reply::Done { held: 0 }),
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let mut servers = Vec::new();
    for block in blocks {
        let asked = Arc::clone(&asked);
        servers.push(evil(&key, move |request| {
            let reply = honest_lengths(&request, &asked);
            reply.unwrap_or_else(|| Reply::Block(block.clone())).encode()
        }));
    }
    servers.push(evil(&key, |_| vec![77; 3]));
    servers.push(evil(&key, |_| vec![2; 900_000]));
    servers.push(evil(&key, |_| Reply::Done { held: u32::MAX }.encode()));
    servers.push(evil(&key, |_| {
        Reply::Full { needed: u32::MAX, free: 0, page_tokens: 0, held: 12 }.encode()
    }));
    servers
        .push(evil(&key, |_| Reply::Failed { held: 0, problem: "\u{1b}[2J".repeat(500) }.encode()));
    for address in servers {
        let mut here = compile(&relay(remote(address, &key))).unwrap();
        let text = random_tokens(100, 97, 8);
        near(&last(&mut *here, A, &text), &text);
        here.truncate(A, 50).unwrap();
        near(&last(&mut *here, A, &text[50..90]), &text[..90]);
        assert_eq!(here.len(A), 90);
    }
    assert!(asked.load(Ordering::SeqCst) > 0);
}

/// A server that counts who connects, and hangs up at the second part of a prompt; later ones it does
/// not even greet.
fn flaky(key: &Key) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, key) = (listener.local_addr().unwrap(), key.clone());
    let connected = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connected);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            if counter.fetch_add(1, Ordering::SeqCst) > 0 {
                continue;
            }
            let mut channel = Channel::accept(stream, &key, PATIENCE).unwrap();
            channel.receive(HEAD).unwrap();
            let ready = Reply::Ready { context: 200, kv_tokens: 400, batch_tokens: 64 };
            channel.send(&ready.encode()).unwrap();
            let mut model = model(5);
            while let Some(request) =
                channel.receive(1 << 20).ok().and_then(|b| Request::decode(&b))
            {
                let reply = match request {
                    Request::Forward { at: 0, tokens, .. } => {
                        let held = tokens.len() as u32;
                        model.forward(&Batch::one(A, tokens, Rows::None)).unwrap();
                        Reply::Done { held }
                    }
                    Request::Export { start, end, .. } => {
                        let range = start as usize..end as usize;
                        Reply::Block(model.export_kv(A, range).unwrap().to_bytes())
                    }
                    _ => break,
                };
                channel.send(&reply.encode()).unwrap();
            }
        }
    });
    (address, connected)
}

#[test]
fn a_connection_that_was_lost_in_a_prompt_is_left_alone_for_a_while() {
    let key = Key::generate().unwrap();
    let (address, connected) = flaky(&key);
    let pause = Duration::from_secs(2);
    let unit = relay(remote(address, &key));
    let unit = RelayUnit { options: RelayOptions { pause, ..unit.options }, ..unit };
    let mut here = compile(&unit).unwrap();
    let text = random_tokens(180, 97, 3);
    let began = Instant::now();
    near(&last(&mut *here, A, &text[..60]), &text[..60]);
    assert_eq!(here.handed_over(A, 0..60), 16, "the first part came");
    // Neither the same conversation nor another goes there meanwhile.
    near(&last(&mut *here, A, &text[60..90]), &text[..90]);
    near(&last(&mut *here, SeqId(2), &text[..40]), &text[..40]);
    assert!(began.elapsed() < pause, "too slow a machine for this test");
    assert_eq!(connected.load(Ordering::SeqCst), 1);
    // Then it is tried once; that this fails at the hand-over back is as good a reason to rest.
    thread::sleep(pause);
    let began = Instant::now();
    near(&last(&mut *here, A, &text[90..120]), &text[..120]);
    near(&last(&mut *here, A, &text[120..150]), &text[..150]);
    near(&last(&mut *here, SeqId(2), &text[40..80]), &text[..80]);
    assert!(began.elapsed() < pause, "too slow a machine for this test");
    assert_eq!(connected.load(Ordering::SeqCst), 2);
    assert_eq!(here.handed_over(A, 0..150), 16);
}

#[test]
fn a_server_that_falls_silent_is_not_waited_for_at_the_end() {
    let key = Key::generate().unwrap();
    let (silent, asked) = (evil_channel(), std::sync::mpsc::channel());
    let address = evil(&key, move |_| {
        let _ = asked.0.send(());
        // Until the test is over.
        let _ = silent.recv();
        Vec::new()
    });
    let mut here = compile(&relay(remote(address, &key))).unwrap();
    here.forward(&Batch::one(A, random_tokens(20, 97, 1), Rows::None)).unwrap();
    asked.1.recv().unwrap();
    let began = Instant::now();
    drop(here);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn a_reply_that_never_ends_is_given_up() {
    let key = Key::generate().unwrap();
    let silent = evil_channel();
    let address = evil(&key, move |_| {
        let _ = silent.recv();
        Vec::new()
    });
    let mut client = compile(&remote(address, &key)).unwrap();
    let began = Instant::now();
    let error = client.forward(&Batch::one(A, vec![1], Rows::None)).unwrap_err();
    assert!(error.to_string().contains("takes too long"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(30));
}

/// One from which nothing ever comes; it lives as long as the program.
fn evil_channel() -> std::sync::mpsc::Receiver<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::mem::forget(sender);
    receiver
}
