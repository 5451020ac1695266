use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::*;
use crate::testing::{ANSWER, Home, options as options_of_models};

/// So many tokens take longer than any of these tests.
const CONTEXT: usize = 200_000;

/// A server on a port of its own.
struct Running {
    address: SocketAddr,
    models: Models,
    stop: Option<oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<()>,
}

async fn run(home: &Home, options: ServeOptions) -> Running {
    let mut wanted = options_of_models();
    wanted.load.context = Some(CONTEXT);
    let models = home.models_with(wanted).await;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = Server::new(models.clone(), options);
    let served = tokio::spawn(server.serve(listener, async {
        let _ = stopped.await;
    }));
    Running { address, models, stop: Some(stop), served }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection over which a conversation with `model` was sent.
    async fn ask(&self, model: &str, stream: bool) -> TcpStream {
        let body = json!({ "model": model, "stream": stream,
            "messages": [{ "role": "user", "content": "Hello" }] })
        .to_string();
        let mut connection = self.connect().await;
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all((head + &body).as_bytes()).await.unwrap();
        connection
    }

    /// Answers that are being made.
    fn busy(&self) -> usize {
        let running = self.models.running();
        running.iter().map(|r| r.loaded.scheduler().unwrap().load().slots.len()).sum()
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < limit, "{what} did not come true");
        time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_is_not_answered_further() {
    let home = Home::new();
    let server = run(&home, ServeOptions::default()).await;
    for stream in [true, false] {
        let connection = server.ask("endless", stream).await;
        until("an answer", || server.busy() == 1).await;
        drop(connection);
        until("the end of the work", || server.busy() == 0).await;
        let running = server.models.running();
        let totals = running[0].loaded.scheduler().unwrap().load().totals;
        assert!((totals.generated_tokens as usize) < CONTEXT / 2, "it was not ended: {totals:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_may_finish_when_the_server_ends() {
    let home = Home::new();
    let mut server = run(&home, ServeOptions::default()).await;
    let mut connection = server.ask("sky", true).await;
    let mut first = [0; 15];
    connection.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    server.stop.take().unwrap().send(()).unwrap();
    let mut rest = String::new();
    connection.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
    let letters = ANSWER.chars().filter(|letter| rest.contains(*letter)).count();
    assert_eq!(letters, ANSWER.chars().count());
    server.served.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_does_not_wait_for_ever() {
    let home = Home::new();
    let drain_timeout = Duration::from_millis(50);
    let mut server = run(&home, ServeOptions { drain_timeout, ..ServeOptions::default() }).await;
    // It has sent nothing that could be answered.
    let mut idle = server.connect().await;
    idle.write_all(b"GET /v1/models HTTP/1.1\r\n").await.unwrap();
    time::sleep(Duration::from_millis(20)).await;
    server.stop.take().unwrap().send(()).unwrap();
    time::timeout(Duration::from_secs(5), server.served).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_must_come_soon_and_be_few() {
    let home = Home::new();
    let header_timeout = Duration::from_millis(100);
    let server = run(&home, ServeOptions { header_timeout, ..ServeOptions::default() }).await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET /v1/models HTTP/1.1\r\nHost: local").await.unwrap();
    let mut rest = Vec::new();
    let read = time::timeout(Duration::from_secs(5), slow.read_to_end(&mut rest)).await;
    assert!(read.is_ok(), "the connection is closed");

    let mut many = server.connect().await;
    let lines: String = (0..200).map(|i| format!("x-{i}: y\r\n")).collect();
    let head = format!("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    many.write_all(head.as_bytes()).await.unwrap();
    let mut reply = String::new();
    many.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
}
