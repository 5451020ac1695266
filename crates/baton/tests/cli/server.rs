//! A web server with one file.

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;

use crate::http::{self, Request};

/// Serves a file under its name for as long as the test program runs; gives the address of it.
pub fn serve(file: PathBuf) -> String {
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    let path = format!("/{name}");
    let bytes = std::fs::read(file).unwrap();
    http::serve(move |request, stream| answer(request, stream, &name, &bytes)) + &path
}

fn answer(
    request: &Request,
    stream: &mut TcpStream,
    name: &str,
    bytes: &[u8],
) -> std::io::Result<()> {
    let start = request
        .header("range")
        .and_then(|value| value.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    if !request.line.contains(&format!("/{name} ")) {
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
    if !request.line.starts_with("HEAD") {
        stream.write_all(&bytes[start..])?;
    }
    Ok(())
}
