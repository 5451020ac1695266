//! A small HTTP server for tests: answers what a closure says, can break off, stall or drip, and
//! keeps a log of what it was asked.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request as it came, header names in lower case.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Where a `Range: bytes=N-` begins.
    pub fn range(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What to answer, and how badly.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Close the connection after so many bytes of the body.
    pub cut: Option<usize>,
    /// Wait between pieces of 4 KiB.
    pub drip: Option<Duration>,
    /// Send the body in chunks, without its length.
    pub chunked: bool,
    /// Say nothing at all for so long.
    pub stall: Option<Duration>,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn bytes(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.into(), value.to_string()));
        self
    }

    pub fn redirect(to: &str) -> Self {
        Self::status(302).header("Location", to)
    }

    /// `bytes` as a file server gives them: heeding `Range` and `If-Range`.
    pub fn file(request: &Request, bytes: &[u8], etag: &str) -> Self {
        let unchanged = request.header("if-range").is_none_or(|tag| tag == etag);
        let reply = match request.range().filter(|_| unchanged) {
            None => Self::bytes(bytes),
            Some(start) if start >= bytes.len() => {
                Self::status(416).header("Content-Range", format!("bytes */{}", bytes.len()))
            }
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
                let mut reply = Self::bytes(&bytes[start..]).header("Content-Range", range);
                reply.status = 206;
                reply
            }
        };
        reply.header("ETag", etag).header("Accept-Ranges", "bytes")
    }

    pub fn cut(mut self, after: usize) -> Self {
        self.cut = Some(after);
        self
    }

    pub fn drip(mut self, pause: Duration) -> Self {
        self.drip = Some(pause);
        self
    }
}

/// Runs until the test process ends.
pub struct Server {
    address: SocketAddr,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `answer` gets each request and how many requests for the same path came before it.
    pub fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (answer, shared) = (Arc::new(answer), Arc::clone(&log));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&shared));
                std::thread::spawn(move || {
                    // A client that goes away is what several tests are about.
                    let _ = serve(stream, &*answer, &log);
                });
            }
        });
        Self { address, log }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn log(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// The requests for one path.
    pub fn asked(&self, path: &str) -> Vec<Request> {
        self.log().into_iter().filter(|request| request.path == path).collect()
    }
}

fn serve(
    stream: TcpStream,
    answer: &dyn Fn(&Request, usize) -> Reply,
    log: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let request = Request { path, headers };
    let before = {
        let mut log = log.lock().unwrap();
        let before = log.iter().filter(|earlier| earlier.path == request.path).count();
        log.push(request.clone());
        before
    };
    send(stream, answer(&request, before))
}

fn send(mut stream: TcpStream, reply: Reply) -> std::io::Result<()> {
    std::thread::sleep(reply.stall.unwrap_or_default());
    let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let stated = reply.headers.iter().any(|(name, _)| name == "Content-Length");
    if reply.chunked {
        head += "Transfer-Encoding: chunked\r\n";
    } else if !stated {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    let end = reply.cut.unwrap_or(reply.body.len()).min(reply.body.len());
    for piece in reply.body[..end].chunks(4096) {
        if reply.chunked {
            stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
        }
        stream.write_all(piece)?;
        if reply.chunked {
            stream.write_all(b"\r\n")?;
        }
        if let Some(pause) = reply.drip {
            stream.flush()?;
            std::thread::sleep(pause);
        }
    }
    if reply.chunked && reply.cut.is_none() {
        stream.write_all(b"0\r\n\r\n")?;
    }
    stream.flush()
}
