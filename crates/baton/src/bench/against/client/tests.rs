#[path = "../../../../tests/cli/http.rs"]
mod http;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::*;

/// What a test server does with a request, given its path and body.
type Behaviour = fn(&str, &Value, &mut TcpStream) -> std::io::Result<()>;

/// Serves until the test program ends; gives the address.
fn serve(behaviour: Behaviour) -> String {
    http::serve(move |request, stream| {
        let path = request.line.split(' ').nth(1).unwrap_or_default();
        behaviour(path, &serde_json::from_slice(&request.body).unwrap_or_default(), stream)
    })
}

fn answer(stream: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn head(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n",
    )
}

fn event(stream: &mut TcpStream, data: &Value) -> std::io::Result<()> {
    write!(stream, "data: {data}\n\n")?;
    stream.flush()
}

fn list(stream: &mut TcpStream) -> std::io::Result<()> {
    answer(stream, "200 OK", &json!({"data": [{"id": "first"}, {"id": "second"}]}).to_string())
}

fn connect(url: &str) -> Client {
    Client::connect(&Rival { url: url.into(), model: None, key: None }).unwrap()
}

#[test]
fn a_stream_is_timed_and_counted() {
    let url = serve(|path, request, stream| match path {
        "/v1/models" => list(stream),
        "/v1/completions" => {
            assert_eq!((&request["model"], &request["stream"]), (&"first".into(), &true.into()));
            thread::sleep(Duration::from_millis(60));
            head(stream)?;
            for i in 0..request["max_tokens"].as_u64().unwrap() {
                thread::sleep(Duration::from_millis(if i > 0 { 20 } else { 0 }));
                event(stream, &json!({"choices": [{"text": " word"}]}))?;
            }
            let words = request["prompt"].as_str().unwrap().split(' ').count();
            let usage = json!({"prompt_tokens": words + 1, "completion_tokens": 4});
            event(stream, &json!({"choices": [], "usage": usage}))?;
            stream.write_all(b"data: [DONE]\n\n")
        }
        _ => answer(stream, "404 Not Found", ""),
    });
    let mut client = connect(&url);
    assert_eq!(client.model(), "first");
    let answer = client.ask("one two three", 4).unwrap();
    assert_eq!((answer.prompt_tokens, answer.tokens), (4, 4));
    // Whoever is kept from reading may see the first word late, but never the last early.
    assert!(answer.first >= Duration::from_millis(60), "{answer:?}");
    assert!(answer.last >= Duration::from_millis(120), "{answer:?}");
}

#[test]
fn a_server_that_only_chats_is_asked_so() {
    let url = serve(|path, request, stream| match path {
        "/v1/chat/completions" => {
            assert_eq!(request["messages"][0]["content"], "hello");
            head(stream)?;
            event(stream, &json!({"choices": [{"delta": {"role": "assistant"}}]}))?;
            event(stream, &json!({"choices": [{"delta": {"content": "a"}}]}))?;
            event(stream, &json!({"choices": [{"delta": {"reasoning_content": "b"}}]}))?;
            stream.write_all(b": a remark\n\ndata: [DONE]\n\n")
        }
        _ => answer(stream, "404 Not Found", "no such path"),
    });
    let rival = Rival { url: format!("{url}/v1/"), model: Some("named".into()), key: None };
    let answer = Client::connect(&rival).unwrap().ask("hello", 2).unwrap();
    // It counts nothing itself.
    assert_eq!((answer.prompt_tokens, answer.tokens), (0, 2));
}

#[test]
fn a_server_that_dies_is_an_error_that_says_so() {
    let url = serve(|path, _, stream| match path {
        "/v1/models" => list(stream),
        _ => {
            head(stream)?;
            event(stream, &json!({"choices": [{"text": "a"}]}))?;
            event(stream, &json!({"choices": [{"text": "b"}]}))
        }
    });
    let error = format!("{:#}", connect(&url).ask("x", 9).unwrap_err());
    assert!(error.contains("broke off after 2 tokens"), "{error}");
}

#[test]
fn what_a_server_complains_of_is_passed_on() {
    let url = serve(|path, _, stream| match path {
        "/v1/models" => list(stream),
        _ => answer(stream, "500 Internal Server Error", "out of memory"),
    });
    let error = connect(&url).ask("x", 9).unwrap_err().to_string();
    assert!(error.contains("500") && error.contains("out of memory"), "{error}");
    let url = serve(|path, _, stream| match path {
        "/v1/models" => list(stream),
        _ => {
            head(stream)?;
            event(stream, &json!({"error": {"message": "too long"}}))
        }
    });
    let error = format!("{:#}", connect(&url).ask("x", 9).unwrap_err());
    assert!(error.contains("too long"), "{error}");
}

#[test]
fn nonsense_is_refused() {
    let url = serve(|path, _, stream| match path {
        "/v1/models" => answer(stream, "200 OK", "[]"),
        _ => {
            head(stream)?;
            // A line without an end.
            let part = [b'x'; 1 << 16];
            (0..32).try_for_each(|_| stream.write_all(&part))
        }
    });
    let rival = Rival { url: url.clone(), model: None, key: None };
    let error = Client::connect(&rival).err().unwrap().to_string();
    assert!(error.contains("lists no model"), "{error}");
    let mut client = Client::connect(&Rival { model: Some("m".into()), ..rival }).unwrap();
    assert!(format!("{:#}", client.ask("x", 9).unwrap_err()).contains("a line of"));
}

#[test]
fn nobody_there_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let rival = Rival { url, model: None, key: None };
    assert!(Client::connect(&rival).err().unwrap().to_string().contains("does not answer"));
    let rival = Rival { url: "localhost:8080".into(), ..rival };
    assert!(Client::connect(&rival).err().unwrap().to_string().contains("no address"));
}
