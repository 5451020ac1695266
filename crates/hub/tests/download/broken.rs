//! Servers that break off, lie, refuse or answer late.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_hub::{Error, Sha256};

use crate::server::{Reply, Server};
use crate::{Room, Told, fails, gguf, holds};

const LEN: usize = 200_000;

/// A room whose model `m` is `gguf(LEN, 1)`, from these servers in order.
fn room(servers: &[&Server]) -> Room {
    let room = Room::new();
    let urls: Vec<_> = servers.iter().map(|server| server.url("/m.gguf")).collect();
    room.catalog(&gguf(LEN, 1), &urls);
    room
}

fn good() -> Server {
    Server::start(|request, _| Reply::file(request, &gguf(LEN, 1), "\"v1\""))
}

#[test]
fn a_broken_connection_is_resumed_where_it_broke() {
    let server = Server::start(|request, before| {
        let reply = Reply::file(request, &gguf(LEN, 1), "\"v1\"");
        if before < 3 { reply.cut(30_000) } else { reply }
    });
    let room = room(&[&server]);
    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    let starts: Vec<_> = server.log().iter().map(|request| request.range().unwrap_or(0)).collect();
    assert_eq!(starts, [0, 30_000, 60_000, 90_000]);
    assert!(told.iter().any(|line| line.starts_with("retry: ")), "{told:?}");
    assert!(room.parts().is_empty());
}

#[test]
fn a_server_without_ranges_starts_anew() {
    let server = Server::start(|_, before| {
        let reply = Reply::bytes(gguf(LEN, 1));
        if before < 2 { reply.cut(50_000) } else { reply }
    });
    let room = room(&[&server]);
    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    assert_eq!(server.log()[1].range(), Some(50_000));
    assert!(!told.contains(&"from 50000".into()), "{told:?}");
}

#[test]
fn a_connection_that_always_breaks_is_given_up_and_the_part_kept() {
    // Nothing new comes after the first time.
    let server = Server::start(|request, before| {
        let reply = Reply::file(request, &gguf(LEN, 1), "\"v1\"");
        reply.cut(if before == 0 { 70_000 } else { 0 })
    });
    let mut room = room(&[&server]);
    room.settings.retries = 2;
    let error = fails(room.get("m").0);
    assert!(matches!(error, Error::Dropped { received: 70_000, .. }), "{error}");
    assert_eq!(server.log().len(), 3, "the first and two more");
    assert_eq!(room.parts()[0].1, 70_000);
    assert!(server.log().iter().all(|request| request.header("if-range").is_none()));

    // A source that has another file does not spoil it.
    let other = Server::start(|request, _| Reply::file(request, &gguf(LEN + 9, 2), "\"v1\""));
    let plain = Server::start(|_, _| Reply::bytes(gguf(LEN + 9, 2)));
    for server in [other, plain] {
        room.catalog(&gguf(LEN, 1), &[server.url("/m.gguf")]);
        assert!(matches!(fails(room.get("m").0), Error::WrongSize { .. }));
        assert_eq!(room.parts()[0].1, 70_000);
    }

    // Another source goes on with it, since the digest tells that the bytes are the same.
    let other = good();
    room.catalog(&gguf(LEN, 1), &[other.url("/copy.gguf")]);
    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    assert_eq!(told[0], "from 70000");
}

#[test]
fn wrong_bytes_are_thrown_away_and_the_next_source_asked() {
    let wrong = Server::start(|request, _| Reply::file(request, &gguf(LEN, 666), "\"v1\""));
    let right = good();
    let both = room(&[&wrong, &right]);
    let (model, told) = both.get("m");
    holds(&model, &gguf(LEN, 1));
    assert_eq!(right.log()[0].range(), None, "nothing of the wrong file is used");
    assert!(told.iter().any(|line| line.starts_with("failed: ")), "{told:?}");

    let room = room(&[&wrong]);
    let error = fails(room.get("m").0);
    let Error::WrongHash { expected, actual, .. } = &error else { panic!("{error}") };
    assert_eq!((*expected, *actual), (Sha256::of(&gguf(LEN, 1)), Sha256::of(&gguf(LEN, 666))));
    assert!(error.to_string().contains(&actual.to_string()));
    assert!(room.parts().is_empty());
    assert_eq!(std::fs::read_dir(room.settings.home.join("blobs")).unwrap().count(), 0);
}

#[test]
fn a_damaged_part_is_found_out_and_fetched_again() {
    let server = good();
    let room = room(&[&server]);
    let partial = room.settings.home.join("partial");
    std::fs::create_dir_all(&partial).unwrap();
    let key = Sha256::of(&gguf(LEN, 1));
    std::fs::write(partial.join(format!("{key}.part")), gguf(60_000, 2)).unwrap();
    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    assert_eq!(told, ["from 60000", "from 0", &format!("done {LEN}")]);

    // Too long to be a part of it, and of the right length but other content.
    for len in [LEN + 1, LEN] {
        let room = self::room(&[&server]);
        let partial = room.settings.home.join("partial");
        std::fs::create_dir_all(&partial).unwrap();
        std::fs::write(partial.join(format!("{key}.part")), gguf(len, 2)).unwrap();
        holds(&room.get("m").0, &gguf(LEN, 1));
    }
}

#[test]
fn sizes_are_checked_before_and_while_bytes_come() {
    let short = Server::start(|request, _| Reply::file(request, &gguf(LEN - 1, 1), "\"v1\""));
    let error = fails(room(&[&short]).get("m").0);
    assert!(
        matches!(error, Error::WrongSize { expected, actual, .. }
        if expected == LEN as u64 && actual == LEN as u64 - 1),
        "{error}"
    );

    // Without a stated length, too many bytes end it as soon as they come.
    let endless = Server::start(|_, _| {
        let mut reply = Reply::bytes(gguf(LEN * 20, 1)).drip(Duration::from_micros(100));
        reply.chunked = true;
        reply
    });
    let room = room(&[&endless]);
    let error = fails(room.get("m").0);
    assert!(
        matches!(error, Error::WrongSize { actual, .. } if actual < LEN as u64 * 10),
        "{error}"
    );
    assert!(room.parts().is_empty());

    // A body shorter than announced.
    let liar = Server::start(|_, _| Reply::bytes(gguf(1000, 1)).header("Content-Length", LEN));
    let mut room = self::room(&[&liar]);
    room.settings.retries = 1;
    assert!(matches!(fails(room.get("m").0), Error::Dropped { .. }));
}

#[test]
fn statuses_say_what_to_do() {
    let answer = |status| Server::start(move |_, _| Reply::status(status));
    let error = fails(room(&[&answer(404)]).get("m").0);
    assert!(matches!(&error, Error::NotFound { what, .. } if what.contains("m.gguf")), "{error}");
    // Not the hub: a token would not help.
    let error = fails(room(&[&answer(403)]).get("m").0);
    assert!(matches!(error, Error::Status { status: 403, .. }), "{error}");

    let busy = answer(503);
    let mut patient = room(&[&busy]);
    patient.settings.retries = 2;
    assert!(matches!(fails(patient.get("m").0), Error::Status { status: 503, .. }));
    assert_eq!(busy.log().len(), 3);

    let recovering = Server::start(|request, before| match before {
        0 => Reply::status(500),
        1 => Reply::status(429).header("Retry-After", 0),
        _ => Reply::file(request, &gguf(LEN, 1), "\"v1\""),
    });
    let waiting = room(&[&recovering]);
    holds(&waiting.get("m").0, &gguf(LEN, 1));

    let limited = Server::start(|_, _| Reply::status(429).header("Retry-After", 3600));
    let error = fails(room(&[&limited]).get("m").0);
    assert!(error.to_string().contains("3600 s"), "{error}");
    assert_eq!(limited.log().len(), 1, "an hour is not waited");
}

#[test]
fn every_failure_is_listed_when_all_sources_fail() {
    let (gone, wrong) = (
        Server::start(|_, _| Reply::status(404)),
        Server::start(|request, _| Reply::file(request, &gguf(LEN, 2), "\"v\"")),
    );
    let (result, told) = room(&[&gone, &wrong]).get("m");
    let error = fails(result);
    // The last failure is not told and returned both.
    assert_eq!(told.iter().filter(|line| line.starts_with("failed: ")).count(), 1, "{told:?}");
    let Error::AllSourcesFailed { failures, .. } = &error else { panic!("{error}") };
    assert!(matches!(failures[0].error, Error::NotFound { .. }));
    assert!(matches!(failures[1].error, Error::WrongHash { .. }));
    assert!(error.to_string().contains(&gone.url("/m.gguf")), "{error}");
}

#[test]
fn dead_and_silent_servers_are_left_soon() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/m.gguf", listener.local_addr().unwrap())
    };
    let silent =
        Server::start(|_, _| Reply { stall: Some(Duration::from_secs(60)), ..Reply::status(200) });
    let stuck = Server::start(|request, before| {
        let reply = Reply::file(request, &gguf(LEN, 1), "\"v\"").drip(Duration::from_secs(60));
        // It begins, and then never says a word again.
        Reply { stall: (before > 0).then_some(Duration::from_secs(60)), ..reply }
    });
    let right = good();
    let mut room = Room::new();
    room.settings.idle_timeout = Duration::from_millis(300);
    room.settings.retries = 1;
    let sources = [closed, silent.url("/m.gguf"), stuck.url("/m.gguf"), right.url("/m.gguf")];
    room.catalog(&gguf(LEN, 1), &sources);
    let begun = Instant::now();
    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    assert!(begun.elapsed() < Duration::from_secs(20), "{told:?}");
    assert_eq!(told.iter().filter(|line| line.starts_with("failed")).count(), 3, "{told:?}");
}

#[test]
fn a_changed_file_of_unknown_digest_is_not_mixed_with_the_old_one() {
    let server = Server::start(|request, before| match before {
        0 => Reply::file(request, &gguf(LEN, 1), "\"v1\"").cut(80_000),
        _ => Reply::file(request, &gguf(LEN, 2), "\"v2\""),
    });
    let room = Room::new();
    let (model, _) = room.get(&server.url("/x.gguf"));
    holds(&model, &gguf(LEN, 2));
    assert_eq!(server.log()[1].header("if-range"), Some("\"v1\""));

    // With no ETag to tell by, a later run begins anew.
    let server = Server::start(|_, before| match before {
        0 => Reply::bytes(gguf(LEN, 1)).cut(80_000),
        _ => Reply::bytes(gguf(LEN, 1)),
    });
    let mut room = Room::new();
    room.settings.retries = 0;
    fails(room.get(&server.url("/x.gguf")).0);
    let (model, told) = room.get(&server.url("/x.gguf"));
    holds(&model, &gguf(LEN, 1));
    assert_eq!(told[0], "from 0");
}

#[test]
fn a_web_page_is_no_model() {
    let server = Server::start(|_, _| Reply::bytes("<!doctype html>"));
    let room = Room::new();
    let error = fails(room.get(&server.url("/x.gguf")).0);
    assert!(matches!(error, Error::NotGguf { .. }), "{error}");
    assert!(room.parts().is_empty());
}

#[test]
fn odd_ranges_start_anew() {
    let odd: [fn(&[u8]) -> Reply; 3] = [
        |_| Reply::status(416),
        |bytes| Reply { status: 206, ..Reply::bytes(bytes) }.header("Content-Range", "bytes 0-1/2"),
        |bytes| Reply { status: 206, ..Reply::bytes(bytes) },
    ];
    for reply in odd {
        let server = Server::start(move |request, before| match before {
            0 => Reply::file(request, &gguf(LEN, 1), "\"v\"").cut(80_000),
            1 => reply(&gguf(LEN, 1)),
            _ => Reply::file(request, &gguf(LEN, 1), "\"v\""),
        });
        let room = room(&[&server]);
        holds(&room.get("m").0, &gguf(LEN, 1));
    }
}

#[test]
fn a_cancelled_download_is_resumed() {
    let server = Server::start(|request, _| {
        Reply::file(request, &gguf(LEN * 4, 1), "\"v1\"").drip(Duration::from_millis(10))
    });
    let room = Room::new();
    room.catalog(&gguf(LEN * 4, 1), &[server.url("/m.gguf"), server.url("/other.gguf")]);
    let store = room.store();
    let mut told = Told { cancel_at: Some(40_000), ..Told::default() };
    let error = store.get(&store.resolve("m").unwrap(), &mut told).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert!(server.asked("/other.gguf").is_empty(), "no other source is asked then");
    let kept = room.parts()[0].1;
    assert!(kept >= 40_000);
    let quick = Arc::new(gguf(LEN * 4, 1));
    let server = Server::start(move |request, _| Reply::file(request, &quick, "\"v1\""));
    room.catalog(&gguf(LEN * 4, 1), &[server.url("/m.gguf")]);
    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN * 4, 1));
    assert_eq!(told[0], format!("from {kept}"));
}

#[test]
fn unfinished_downloads_can_be_thrown_away() {
    let server = Server::start(|_, _| Reply::bytes(gguf(LEN, 1)).cut(90_000));
    let mut room = Room::new();
    room.settings.retries = 0;
    fails(room.get(&server.url("/x.gguf")).0);
    assert_eq!(room.parts()[0].1, 90_000);
    let freed = room.store().discard_unfinished().unwrap();
    assert!(freed >= 90_000);
    assert!(room.parts().is_empty());
    assert_eq!(room.store().discard_unfinished().unwrap(), 0);
}
