//! The server as a program: where it listens, what it says, how it ends. What it answers is tested
//! where that is made.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::program::Home;
use crate::tiny::ANSWER;

/// A server that ends with the test.
struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
    /// What it said before it listened.
    said: String,
}

impl Server {
    fn start(home: &Home, args: &[&str]) -> Server {
        let args = [&["serve", "--port", "0"], args].concat();
        let mut command = home.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (address, said) = (String::new(), String::new());
        let mut server = Server { child, stderr, address, said };
        while server.address.is_empty() {
            let mut line = String::new();
            let read = server.stderr.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "it ended: {}", server.said);
            match line.trim().strip_prefix("listening on http://") {
                Some(address) => server.address = address.replace("0.0.0.0", "127.0.0.1"),
                None => server.said += &line,
            }
        }
        server
    }

    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut connection = TcpStream::connect(&self.address).unwrap();
        write!(
            connection,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        connection
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut reply = String::new();
        self.send(method, path, body).read_to_string(&mut reply).unwrap();
        reply
    }

    #[cfg(unix)]
    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_model_of_the_users_own_is_served() {
    let home = Home::new();
    let server = Server::start(&home, &["--model", &home.model(), "--ctx", "256"]);
    assert!(
        server.said.contains("tiny is loaded, with a context of 256 tokens"),
        "{}",
        server.said
    );
    let body = r#"{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}"#;
    let reply = server.ask("POST", "/v1/chat/completions", body);
    assert!(reply.starts_with("HTTP/1.1 200 OK"), "{reply}");
    assert!(reply.contains(ANSWER), "{reply}");
    let models = server.ask("GET", "/v1/models", "");
    assert!(models.contains("\"id\":\"tiny\"") && models.contains("\"loaded\":true"), "{models}");
    assert!(server.ask("GET", "/health", "").starts_with("HTTP/1.1 200 OK"));
    assert!(server.ask("GET", "/", "").ends_with("Ollama is running"));
}

#[test]
fn a_folder_that_a_model_was_compiled_into_is_served() {
    let home = Home::new();
    let folder = home.path("packages");
    let folder = folder.to_str().unwrap();
    home.run(&["compile", &home.model(), "-o", folder, "-c", "256", "--no-quality"]).ok();
    let server = Server::start(&home, &["--model", folder]);
    assert!(server.said.contains("packages is loaded, with a context of 256"), "{}", server.said);
    let body = r#"{"model": "packages", "messages": [{"role": "user", "content": "Hi"}]}"#;
    let reply = server.ask("POST", "/v1/chat/completions", body);
    assert!(reply.starts_with("HTTP/1.1 200 OK") && reply.contains(ANSWER), "{reply}");
}

#[test]
fn a_key_is_asked_for_and_a_missing_one_is_remarked_on() {
    let home = Home::new();
    let server = Server::start(&home, &["--api-key", "secret"]);
    assert!(server.ask("GET", "/v1/models", "").starts_with("HTTP/1.1 401 Unauthorized"));
    let open = Server::start(&home, &["--host", "0.0.0.0"]);
    assert!(open.said.contains("everyone who can reach") && open.said.contains("--api-key"));
    assert!(!server.said.contains("everyone"));
}

#[test]
fn what_cannot_be_served_ends_the_program_with_one_line() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let port = server.address.rsplit(':').next().unwrap();
    home.run(&["serve", "--port", port]).failed(1, "cannot listen at 127.0.0.1:");
    home.run(&["serve", "--port", "0", "--model", "./missing.gguf"]).failed(1, "missing.gguf");
    home.run(&["serve", "--port", "0", "--api-key", " "]).failed(2, "the API key is empty");
    for (flag, value) in [("--keep-alive", "soon"), ("--memory", "much"), ("--port", "70000")] {
        home.run(&["serve", flag, value]).failed(2, flag);
    }
}

#[cfg(unix)]
#[test]
fn sigterm_lets_an_answer_finish() {
    let home = Home::new();
    let args = ["--model", &home.endless_model(), "--ctx", "4096"];
    let mut server = Server::start(&home, &args);
    let body = r#"{"model": "endless", "prompt": "a", "max_tokens": 300, "stream": true}"#;
    let mut connection = server.send("POST", "/v1/completions", body);
    let mut first = [0; 15];
    connection.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    server.terminate();
    let mut rest = String::new();
    connection.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"));
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut stderr = String::new();
    server.stderr.read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("letting running answers finish"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn answers_across_two_units_are_served_and_traced() {
    let home = Home::new();
    let units = ["--prefill", "reference", "--decode", "cpu", "--crossover", "4"];
    let model = home.model();
    let args = [&["--model", &model, "--trace", "t.json"], &units[..]].concat();
    let mut server = Server::start(&home, &args);
    let content = "Why is the sky blue? ".repeat(3);
    let body = format!(
        "{{\"model\": \"tiny\", \"messages\": [{{\"role\": \"user\", \"content\": \"{content}\"}}]}}"
    );
    for _ in 0..2 {
        let reply = server.ask("POST", "/v1/chat/completions", &body);
        assert!(reply.contains(ANSWER), "{reply}");
    }
    server.terminate();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let trace = std::fs::read_to_string(home.path("t.json")).unwrap();
    for part in ["reference: prefill", "cpu: decode", "hand-off out", "hand-off in", "decode"] {
        assert!(trace.contains(part), "{part}: {trace}");
    }
}
