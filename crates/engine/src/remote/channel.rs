//! An encrypted connection between two who know the same key.
//!
//! The handshake is `Noise_NNpsk0_25519_ChaChaPoly_SHA256`: who does not know the key cannot finish
//! it, and who learns the key later cannot read what was said before. Then come messages of any length
//! in frames of at most 64 KiB:
//!
//! | bytes | content |
//! |---|---|
//! | 2 | length of the frame, big-endian |
//! | | the frame, encrypted: at the beginning of a message its length as `u32`, little-endian, then bytes of it |

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::str::FromStr;
use std::time::Duration;

use baton_graph::hex;
use snow::{Builder, HandshakeState, TransportState};

use super::timed::Timed;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Of an encrypted frame.
const MOST_FRAME: usize = 65_535;
/// What encryption adds.
const TAG: usize = 16;

/// What both ends know.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

/// A text that is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has 64 hexadecimal digits; `baton prefill-server` makes one")]
pub struct BadKey;

impl Key {
    /// A new one, from the system's randomness.
    ///
    /// # Errors
    /// If the system gives none.
    pub fn generate() -> io::Result<Key> {
        let pair = builder()?.generate_keypair().map_err(failed)?;
        Ok(Key(pair.private.try_into().map_err(|_| io::Error::other("no key of 32 bytes"))?))
    }

    /// As 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }
}

impl FromStr for Key {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let text = text.trim();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadKey);
        }
        let mut key = [0; 32];
        for (byte, at) in key.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| BadKey)?;
        }
        Ok(Key(key))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The connection. All of a message must come, and go, in the time that [`Channel::within`] gives.
pub(super) struct Channel {
    stream: Timed,
    transport: TransportState,
    frame: Vec<u8>,
    plain: Vec<u8>,
}

impl Channel {
    /// The end that connected. What is left of `patience` is for the first messages.
    pub(super) fn connect(stream: TcpStream, key: &Key, patience: Duration) -> io::Result<Channel> {
        let mut state =
            builder()?.psk(0, &key.0).and_then(Builder::build_initiator).map_err(failed)?;
        let mut channel = Unfinished::new(stream, patience);
        channel.write(&mut state)?;
        channel.read(&mut state)?;
        channel.finish(state)
    }

    /// The end that was connected to. What is left of `patience` is for the first messages.
    pub(super) fn accept(stream: TcpStream, key: &Key, patience: Duration) -> io::Result<Channel> {
        let mut state =
            builder()?.psk(0, &key.0).and_then(Builder::build_responder).map_err(failed)?;
        let mut channel = Unfinished::new(stream, patience);
        channel.read(&mut state)?;
        channel.write(&mut state)?;
        channel.finish(state)
    }

    /// What is sent and received from now on must be so in this time.
    pub(super) fn within(&mut self, patience: Duration) -> &mut Self {
        self.stream.within(patience);
        self
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let len = u32::try_from(message.len()).map_err(io::Error::other)?;
        let mut first = len.to_le_bytes().to_vec();
        let (beginning, rest) = message.split_at(message.len().min(MOST_FRAME - TAG - 4));
        first.extend(beginning);
        self.send_frame(&first)?;
        rest.chunks(MOST_FRAME - TAG).try_for_each(|part| self.send_frame(part))
    }

    fn send_frame(&mut self, plain: &[u8]) -> io::Result<()> {
        self.frame.resize(MOST_FRAME, 0);
        let len = self.transport.write_message(plain, &mut self.frame).map_err(failed)?;
        write_frame(&mut self.stream, &self.frame[..len])
    }

    /// Receives a message of at most `most` bytes. Memory is taken for what has come only.
    pub(super) fn receive(&mut self, most: usize) -> io::Result<Vec<u8>> {
        self.receive_frame()?;
        let Some((len, rest)) = self.plain.split_first_chunk::<4>() else {
            return Err(invalid("a message without a length"));
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len > most {
            return Err(invalid(&format!("a message of {len} bytes, where {most} are the most")));
        }
        let mut message = rest.to_vec();
        while message.len() < len {
            self.receive_frame()?;
            if self.plain.is_empty() {
                return Err(invalid("an empty frame"));
            }
            message.extend(&self.plain);
        }
        match message.len() == len {
            true => Ok(message),
            false => Err(invalid("a message is longer than it says")),
        }
    }

    fn receive_frame(&mut self) -> io::Result<()> {
        read_frame(&mut self.stream, &mut self.frame)?;
        self.plain.resize(MOST_FRAME, 0);
        let len = self.transport.read_message(&self.frame, &mut self.plain).map_err(failed)?;
        self.plain.truncate(len);
        Ok(())
    }
}

/// A connection in its handshake.
struct Unfinished {
    stream: Timed,
    frame: Vec<u8>,
    plain: Vec<u8>,
}

impl Unfinished {
    fn new(stream: TcpStream, patience: Duration) -> Self {
        let stream = Timed::new(stream, patience);
        Unfinished { stream, frame: Vec::new(), plain: vec![0; MOST_FRAME] }
    }

    fn write(&mut self, state: &mut HandshakeState) -> io::Result<()> {
        let len = state.write_message(&[], &mut self.plain).map_err(failed)?;
        write_frame(&mut self.stream, &self.plain[..len])
    }

    fn read(&mut self, state: &mut HandshakeState) -> io::Result<()> {
        read_frame(&mut self.stream, &mut self.frame)?;
        state.read_message(&self.frame, &mut self.plain).map_err(|_| {
            io::Error::new(io::ErrorKind::PermissionDenied, "the other end has another key")
        })?;
        Ok(())
    }

    fn finish(self, state: HandshakeState) -> io::Result<Channel> {
        let transport = state.into_transport_mode().map_err(failed)?;
        let Unfinished { stream, frame, plain } = self;
        Ok(Channel { stream, transport, frame, plain })
    }
}

fn builder<'b>() -> io::Result<Builder<'b>> {
    Ok(Builder::new(PATTERN.parse().map_err(failed)?))
}

fn write_frame(stream: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let len = u16::try_from(frame.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes(), frame].concat())
}

fn read_frame(stream: &mut impl Read, frame: &mut Vec<u8>) -> io::Result<()> {
    let mut read = |bytes: &mut [u8]| {
        stream.read_exact(bytes).map_err(|error| match error.kind() {
            kind @ io::ErrorKind::UnexpectedEof => io::Error::new(kind, "the other end hung up"),
            _ => error,
        })
    };
    let mut len = [0; 2];
    read(&mut len)?;
    frame.resize(usize::from(u16::from_be_bytes(len)), 0);
    read(frame)
}

fn failed(error: snow::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;
    use std::time::Instant;

    use super::*;

    fn streams() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    const PATIENCE: Duration = Duration::from_secs(10);

    fn pair() -> (Channel, Channel) {
        let key = Key::generate().unwrap();
        let (here, there) = streams();
        let other = key.clone();
        let there = thread::spawn(move || Channel::accept(there, &other, PATIENCE).unwrap());
        (Channel::connect(here, &key, PATIENCE).unwrap(), there.join().unwrap())
    }

    #[test]
    fn keys_are_written_and_read_and_not_shown() {
        let key = Key::generate().unwrap();
        assert_ne!(key, Key::generate().unwrap());
        assert_eq!(format!(" {}\n", key.to_hex()).parse(), Ok(key.clone()));
        for bad in ["", "12", &"g".repeat(64), &"é".repeat(32), &"a".repeat(63)] {
            assert_eq!(bad.parse::<Key>(), Err(BadKey));
        }
        assert!(!format!("{key:?}").contains(&key.to_hex()[..8]));
    }

    #[test]
    fn messages_of_every_length_arrive() {
        let (mut here, mut there) = pair();
        let lengths =
            [0, 1, MOST_FRAME - TAG - 5, MOST_FRAME - TAG - 4, MOST_FRAME - TAG - 3, 300_000];
        let echo = thread::spawn(move || {
            for _ in lengths {
                let message = there.receive(300_000).unwrap();
                there.send(&message).unwrap();
            }
        });
        for len in lengths {
            let message: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            here.send(&message).unwrap();
            assert_eq!(here.receive(300_000).unwrap(), message);
        }
        echo.join().unwrap();
    }

    #[test]
    fn who_has_another_key_is_refused_by_both_ends() {
        let (here, there) = streams();
        let (key, other) = (Key::generate().unwrap(), Key::generate().unwrap());
        let accepted =
            thread::spawn(move || Channel::accept(there, &other, PATIENCE).err().unwrap());
        assert!(Channel::connect(here, &key, PATIENCE).is_err());
        assert_eq!(accepted.join().unwrap().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_message_must_come_whole_and_in_time() {
        let (here, mut there) = pair();
        let trickle = thread::spawn(move || {
            // A frame that is longer than anybody waits for.
            let bytes = [&[255, 255][..], &[0; 100]].concat();
            bytes.iter().all(|byte| {
                thread::sleep(Duration::from_millis(20));
                here.stream.get_ref().write_all(&[*byte]).is_ok()
            })
        });
        let started = Instant::now();
        let error = there.within(Duration::from_millis(300)).receive(1 << 20).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(started.elapsed() >= Duration::from_millis(300));
        assert!(!trickle.is_finished(), "bytes came all the time");
        drop(there);
        trickle.join().unwrap();
    }

    #[test]
    fn what_was_changed_on_the_way_or_is_too_long_is_refused() {
        let (mut here, mut there) = pair();
        here.send(&[7; 100]).unwrap();
        assert!(there.receive(99).is_err());
        let (mut here, mut there) = pair();
        // A frame that nobody encrypted, and one that ends early.
        write_frame(&mut here.stream, &[1; 50]).unwrap();
        assert!(there.receive(1000).is_err());
        let (mut here, mut there) = pair();
        here.stream.write_all(&[0, 50, 1, 2, 3]).unwrap();
        drop(here);
        assert_eq!(there.receive(1000).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // A length that does not belong to what follows.
        for message in [&[][..], &[1, 0, 0], &[1, 0, 0, 0, 5, 6]] {
            let (mut here, mut there) = pair();
            here.send_frame(message).unwrap();
            assert_eq!(there.receive(1000).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let (mut here, mut there) = pair();
        here.send_frame(&[9, 0, 0, 0, 5]).unwrap();
        here.send_frame(&[]).unwrap();
        assert!(there.receive(1000).is_err(), "frames without end");
    }
}
