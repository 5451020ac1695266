//! A web server with one file.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;

/// Serves a file under its name for as long as the test program runs; gives the address of it.
pub fn serve(file: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    let url = format!("http://{address}/{name}");
    let bytes = std::fs::read(file).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away is its own affair.
            let _ = answer(&stream, &name, &bytes);
        }
    });
    url
}

fn answer(stream: &TcpStream, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let headers: Vec<String> = lines.map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
    let start = headers.iter().find_map(|header| {
        let (key, value) = header.split_once(": ")?;
        let range = value.strip_prefix("bytes=")?.strip_suffix('-')?;
        if key.eq_ignore_ascii_case("range") { range.parse::<usize>().ok() } else { None }
    });
    let mut stream = stream;
    if !request.contains(&format!("/{name} ")) {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    }
    let start = start.unwrap_or(0).min(bytes.len());
    let (status, total) = (if start > 0 { "206 Partial Content" } else { "200 OK" }, bytes.len());
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n", total - start)?;
    if start > 0 {
        write!(stream, "Content-Range: bytes {start}-{}/{total}\r\n", total - 1)?;
    }
    write!(stream, "Connection: close\r\n\r\n")?;
    if !request.starts_with("HEAD") {
        stream.write_all(&bytes[start..])?;
    }
    Ok(())
}
