//! Who is connected: clients that have shown the key, and strangers that may.
//!
//! Each kind has a limit of its own. Clients have their places for as long as they like; strangers
//! have little time, and where there are too many of them the oldest gives way, so that connections
//! that say nothing keep nobody out.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most clients at the same time.
pub(super) const MOST_CLIENTS: usize = 16;
/// Most strangers at the same time.
pub(super) const MOST_STRANGERS: usize = 32;
/// How often it is told that strangers were turned away.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Door {
    guests: Mutex<Guests>,
    hush: Mutex<Hush>,
}

/// By number, in the order in which they came.
#[derive(Default)]
struct Guests {
    next: u64,
    all: BTreeMap<u64, Guest>,
}

struct Guest {
    stream: TcpStream,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stranger,
    /// It was hung up on, and its thread will find that out.
    Dismissed,
    Client,
}

impl Door {
    /// Lets a stranger in and gives its number; none if too many of those who were dismissed are not
    /// gone yet.
    pub(super) fn enter(&self, stream: &TcpStream) -> Option<u64> {
        let mut guests = self.guests();
        let count = |kind| guests.all.values().filter(|guest| guest.kind == kind).count();
        let (strangers, dismissed) = (count(Kind::Stranger), count(Kind::Dismissed));
        if dismissed >= MOST_STRANGERS {
            return None;
        }
        let stream = stream.try_clone().ok()?;
        if strangers >= MOST_STRANGERS
            && let Some(oldest) = guests.all.values_mut().find(|guest| guest.kind == Kind::Stranger)
        {
            oldest.kind = Kind::Dismissed;
            // It may be gone by itself.
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
        let id = guests.next;
        guests.next += 1;
        guests.all.insert(id, Guest { stream, kind: Kind::Stranger });
        Some(id)
    }

    /// A stranger has shown that it knows the key; whether there is a place for it.
    pub(super) fn prove(&self, id: u64) -> bool {
        let mut guests = self.guests();
        let clients = guests.all.values().filter(|guest| guest.kind == Kind::Client).count();
        match guests.all.get_mut(&id) {
            Some(guest) if guest.kind == Kind::Stranger && clients < MOST_CLIENTS => {
                guest.kind = Kind::Client;
                true
            }
            _ => false,
        }
    }

    /// Whoever it was is gone; whether it was a client.
    pub(super) fn leave(&self, id: u64) -> bool {
        self.guests().all.remove(&id).is_some_and(|guest| guest.kind == Kind::Client)
    }

    /// Hangs up on all.
    pub(super) fn close(&self) {
        for guest in self.guests().all.values() {
            let _ = guest.stream.shutdown(Shutdown::Both);
        }
    }

    /// Tells that a stranger was turned away, but not of each.
    pub(super) fn turned_away(&self, address: SocketAddr, problem: &dyn Display) {
        let mut hush = self.hush.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(others) = hush.note(Instant::now()) {
            tracing::warn!(%address, others, "turned away: {problem}");
        }
    }

    /// Nothing is left half changed by a panic.
    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.guests().all.len()
    }
}

/// Tells the first of many things, and later how many there were since.
#[derive(Default)]
struct Hush {
    told: Option<Instant>,
    untold: usize,
}

impl Hush {
    /// Something happened; if it is to be told, how much was not told since the last time.
    fn note(&mut self, now: Instant) -> Option<usize> {
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < QUIET) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    struct Street {
        listener: TcpListener,
        door: Door,
    }

    impl Street {
        fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            Street { listener, door: Door::default() }
        }

        /// Somebody who came, and the number that it got.
        fn comes(&self) -> (TcpStream, Option<u64>) {
            let far = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            far.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let near = self.listener.accept().unwrap().0;
            (far, self.door.enter(&near))
        }
    }

    /// Whether it was hung up on.
    fn is_over(stream: &mut TcpStream) -> bool {
        matches!(stream.read(&mut [0; 1]), Ok(0))
    }

    #[test]
    fn the_oldest_stranger_gives_way_and_clients_stay() {
        let street = Street::new();
        let (mut client, id) = street.comes();
        assert!(street.door.prove(id.unwrap()));
        let mut strangers: Vec<_> = (0..MOST_STRANGERS).map(|_| street.comes()).collect();
        assert!(!is_over(&mut strangers[0].0));
        strangers.push(street.comes());
        assert!(is_over(&mut strangers[0].0));
        assert!(!is_over(&mut strangers[1].0) && !is_over(&mut client));
        assert!(!street.door.prove(strangers[0].1.unwrap()), "it was hung up on");
        // One that has shown the key is no stranger, and nobody gives way for the next.
        assert!(street.door.prove(strangers[2].1.unwrap()));
        strangers.push(street.comes());
        assert!(!is_over(&mut strangers[1].0));
        street.door.close();
        assert!(is_over(&mut client) && is_over(&mut strangers[1].0));
    }

    #[test]
    fn who_does_not_go_when_dismissed_is_counted() {
        let street = Street::new();
        let come: Vec<_> = (0..2 * MOST_STRANGERS).map(|_| street.comes()).collect();
        assert!(come.iter().all(|(_, id)| id.is_some()));
        assert_eq!(street.comes().1, None);
        street.door.leave(come[0].1.unwrap());
        assert!(street.comes().1.is_some());
    }

    #[test]
    fn places_of_clients_are_limited_and_come_back() {
        let street = Street::new();
        let come: Vec<_> = (0..=MOST_CLIENTS).map(|_| street.comes()).collect();
        let proven = come.iter().filter(|(_, id)| street.door.prove(id.unwrap())).count();
        assert_eq!(proven, MOST_CLIENTS);
        let (first, last) = (come[0].1.unwrap(), come[MOST_CLIENTS].1.unwrap());
        assert!(street.door.leave(first) && !street.door.leave(first));
        assert!(street.door.prove(last));
    }

    #[test]
    fn the_log_is_not_flooded() {
        let (mut hush, start) = (Hush::default(), Instant::now());
        assert_eq!(hush.note(start), Some(0));
        let flood = (0..100).filter_map(|_| hush.note(start + QUIET / 2)).count();
        assert_eq!(flood, 0);
        assert_eq!(hush.note(start + QUIET), Some(100));
        assert_eq!(hush.note(start + 3 * QUIET), Some(0));
    }
}
