//! Streams whose other end may fall silent: read and written until a certain time, and cut off by
//! whoever does not want to wait.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Ends connections from another thread: the one that there is, and all that would follow.
#[derive(Clone, Default)]
pub(super) struct Cutter(Arc<Mutex<Cut>>);

#[derive(Default)]
struct Cut {
    done: bool,
    stream: Option<TcpStream>,
}

impl Cutter {
    /// Whoever waits for the other end waits no more.
    pub(super) fn cut(&self) {
        let mut cut = self.lock();
        cut.done = true;
        if let Some(stream) = cut.stream.take() {
            // One that is closed already is as good.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Takes note of the connection that there is now.
    ///
    /// # Errors
    /// If there are to be none any more.
    pub(super) fn hold(&self, stream: &TcpStream) -> io::Result<()> {
        let mut cut = self.lock();
        if cut.done {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "it is not wanted any more"));
        }
        cut.stream = Some(stream.try_clone()?);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Cut> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that is read and written until a certain time, however little comes at once.
pub(super) struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    pub(super) fn new(stream: TcpStream, patience: Duration) -> Self {
        Timed { stream, until: Instant::now() + patience }
    }

    /// What is read and written from now on must be so in this time.
    pub(super) fn within(&mut self, patience: Duration) {
        self.until = Instant::now() + patience;
    }

    /// The stream itself, which knows of no time.
    #[cfg(test)]
    pub(super) fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(silent()) } else { Ok(Some(left)) }
    }
}

/// Systems call a time that has passed by different names.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent(),
        _ => error,
    }
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the other end takes too long")
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    #[test]
    fn a_connection_is_cut_from_another_thread_and_so_is_the_next() {
        let (here, _there) = pair();
        let cutter = Cutter::default();
        cutter.hold(&here).unwrap();
        let mut waits = Timed::new(here, Duration::from_secs(600));
        let waiting = thread::spawn(move || waits.read(&mut [0; 8]));
        thread::sleep(Duration::from_millis(50));
        cutter.cut();
        assert!(!matches!(waiting.join().unwrap(), Ok(1..)));
        assert!(cutter.hold(&pair().0).is_err());
    }
}
