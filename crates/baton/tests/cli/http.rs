//! As much of a web server as tests need.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// What a client asked for.
pub struct Request {
    /// Its first line, such as `GET /v1/models HTTP/1.1`.
    pub line: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// What came after them.
    pub body: Vec<u8>,
}

impl Request {
    /// The value of a header, whose name may be written in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn read(stream: &TcpStream) -> io::Result<Request> {
        let mut reader = BufReader::new(stream);
        let mut lines = reader.by_ref().lines();
        let line = lines.next().transpose()?.unwrap_or_default();
        let headers = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
        let pair = |line: String| {
            let (key, value) = line.split_once(':')?;
            Some((key.to_owned(), value.trim().to_owned()))
        };
        let headers = headers.filter_map(pair).collect();
        let mut request = Request { line, headers, body: Vec::new() };
        let length = request.header("content-length").map_or(0, |value| value.parse().unwrap());
        request.body = vec![0; length];
        reader.read_exact(&mut request.body)?;
        Ok(request)
    }
}

/// Answers each request for as long as the test program runs; gives the address.
pub fn serve(
    mut answer: impl FnMut(&Request, &mut TcpStream) -> io::Result<()> + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A client that goes away is its own affair.
            let _ = Request::read(&stream).and_then(|request| answer(&request, &mut stream));
        }
    });
    url
}
